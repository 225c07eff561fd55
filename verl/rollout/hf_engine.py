"""The in-process engine: batched decoding with transformers modules.

Equal prompts are read once and their keys and values shared out to all samples of the group; finished rows leave the
batch; each request draws from its own seed.

Shapes: P unique prompts, R rows (samples), K cached positions, V vocabulary, T new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache, PreTrainedTokenizerBase

from verl.errors import ConfigError, DataError
from verl.models.policy import PolicyModel, forward_parameters
from verl.rollout.engine import Completion, FinishReason, GenerateRequest
from verl.rollout.kv_cache import share_out
from verl.rollout.sampling import SamplingPlan, request_uniforms, sample_tokens
from verl.rollout.stop_strings import StopStringMatcher

# Rows are dropped once fewer than this share of the batch is still sampling: dropping copies the cache.
_COMPACT_BELOW = 0.75


class HfEngine:
    """Samples from a policy in this process.

    Example: `completions = asyncio.run(HfEngine(policy, tokenizer).generate(requests))`.

    Args:
        policy: The model being trained; sampled from as it is at each call, LoRA adapter included.
        tokenizer: Its tokenizer (end tokens, decoding for stop strings).
        max_batch_size: Most rows decoded at once; nothing = all.
    """

    def __init__(
        self, policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, *, max_batch_size: int | None = None
    ) -> None:
        self._policy = policy
        self._max_batch_size = max_batch_size
        self._matcher = StopStringMatcher(tokenizer)
        self._end_ids = _end_ids(policy, tokenizer)
        self._version = 0
        parameters = forward_parameters(policy.decoder)
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._can_pad = self._probe_left_padding()

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Samples one completion per request, in the order of the requests.

        Raises:
            DataError: A prompt is empty.
            ConfigError: Prompt and `max_new_tokens` together exceed the model's positions.
        """
        self._check(requests)
        completions: list[Completion | None] = [None] * len(requests)
        with self._sampling_mode():
            for batch in self._batches(requests):
                for index, completion in zip(batch, self._decode([requests[i] for i in batch]), strict=True):
                    completions[index] = completion
        return completions  # type: ignore[return-value]

    async def update_weights(self, policy_version: int) -> None:
        """Stamps what follows with `policy_version`; the weights are the trained ones already."""
        self._version = policy_version

    async def close(self) -> None:
        """Nothing is held between calls."""

    def _check(self, requests: Sequence[GenerateRequest]) -> None:
        limit = self._policy.max_positions
        for index, request in enumerate(requests):
            if not request.prompt_ids:
                raise DataError(f"request {index} has an empty prompt; a prompt needs at least one token")
            needed = len(request.prompt_ids) + request.sampling.max_new_tokens
            if limit is not None and needed > limit:
                raise ConfigError(
                    f"a prompt of {len(request.prompt_ids)} tokens and {request.sampling.max_new_tokens} new ones need "
                    f"{needed} positions, but the model has {limit}; lower data.max_prompt_length or "
                    f"data.max_response_length"
                )

    def _batches(self, requests: Sequence[GenerateRequest]) -> Iterator[list[int]]:
        """Indices of requests to decode together: of similar prompt length, equal prompts side by side."""
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids))
        size = self._max_batch_size or max(len(order), 1)
        batch: list[int] = []
        for index in order:
            is_new_length = batch and len(requests[index].prompt_ids) != len(requests[batch[0]].prompt_ids)
            if len(batch) == size or (is_new_length and not self._can_pad):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    @contextmanager
    def _sampling_mode(self) -> Iterator[None]:
        was_training = self._policy.network.training
        self._policy.network.eval()
        try:
            with torch.inference_mode(), self._policy.autocast():
                yield
        finally:
            self._policy.network.train(was_training)

    def _decode(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        state = _BatchState(requests, self._policy.device)
        prompts = list(dict.fromkeys(request.prompt_ids for request in requests))
        row_of_prompt = {prompt: row for row, prompt in enumerate(prompts)}
        expand_R = torch.tensor([row_of_prompt[request.prompt_ids] for request in requests], device=self._policy.device)
        logits_PV, cache, mask_PK, length_P = self._prefill(prompts)
        logits_RV = logits_PV[expand_R]
        share_out(cache, expand_R, state.max_new_tokens)
        width = mask_PK.shape[1]
        is_padded = not bool(mask_PK.all())
        mask_RK = torch.nn.functional.pad(mask_PK, (0, state.max_new_tokens), value=1)[expand_R]
        position_R = length_P[expand_R]
        for step in range(state.max_new_tokens):
            token_R, logprob_R = sample_tokens(logits_RV, state.plan, state.uniform_RT[:, step])
            state.record(step, token_R, logprob_R, self._end_ids, self._matcher)
            if not state.num_active:
                break
            if state.num_active < _COMPACT_BELOW * len(token_R):
                keep = state.compact()
                cache.reorder_cache(keep)  # type: ignore[arg-type]
                token_R, mask_RK, position_R = token_R[keep], mask_RK[keep], position_R[keep]
            logits_RV = self._forward(
                token_R[:, None],
                cache,
                mask_RK[:, : width + step + 1] if is_padded else None,
                (position_R + step)[:, None] if is_padded else None,
            )
        return state.completions(self._version)

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor, torch.Tensor]:
        width = max(len(prompt) for prompt in prompts)
        device = self._policy.device
        ids_PK = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask_PK = (torch.arange(width, device=device) >= width - length_P[:, None]).long()
        cache = DynamicCache(config=self._policy.transformer.config)
        is_padded = bool((length_P != width).any())
        position_PK = (mask_PK.cumsum(-1) - 1).clamp(min=0) if is_padded else None
        return self._forward(ids_PK, cache, mask_PK, position_PK), cache, mask_PK, length_P

    def _forward(
        self,
        ids_RK: torch.Tensor,
        cache: Cache,
        mask_RK: torch.Tensor | None,
        position_RK: torch.Tensor | None,
    ) -> torch.Tensor:
        """Float32 logits [R, V] at the last column; `cache` grows by the columns of `ids_RK`."""
        inputs: dict[str, Any] = {
            "input_ids": ids_RK,
            "attention_mask": mask_RK,
            "use_cache": True,
            self._cache_name: cache,
        }
        if position_RK is not None and self._takes_positions:
            inputs["position_ids"] = position_RK
        if self._policy.has_plain_head:
            return self._policy.head_logits(self._policy.decoder(**inputs).last_hidden_state[:, -1])
        return self._policy.transformer(**inputs, logits_to_keep=1).logits[:, -1].float()

    def _probe_left_padding(self) -> bool:
        """Whether a left-padded prompt gives what the prompt alone gives; if not, only equal lengths share a batch."""
        with self._sampling_mode():
            prompt = tuple(range(1, 5))
            alone = self._forward(torch.tensor([prompt], device=self._policy.device), *self._empty_inputs())
            padded, *_ = self._prefill([(*prompt, *prompt), prompt])
        return bool((padded[1] - alone[0]).abs().max() <= 1e-2 * alone.abs().max().clamp(min=1))

    def _empty_inputs(self) -> tuple[Cache, None, None]:
        return DynamicCache(config=self._policy.transformer.config), None, None


def _end_ids(policy: PolicyModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """All ids that end a response: of the generation settings and of the tokenizer."""
    generation = policy.transformer.generation_config
    configured = None if generation is None else generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    known = {index for index in [*ids, tokenizer.eos_token_id] if isinstance(index, int)}
    return torch.tensor(sorted(known), device=policy.device)


class _BatchState:
    """What has been sampled for the rows of one batch. Row numbers stay those of the requests; `active_R` maps the
    rows that are still computed to them."""

    def __init__(self, requests: Sequence[GenerateRequest], device: torch.device) -> None:
        self._requests = requests
        self.max_new_tokens = max(request.sampling.max_new_tokens for request in requests)
        self.plan = SamplingPlan.build([request.sampling for request in requests], device)
        self._limit_R = torch.tensor([request.sampling.max_new_tokens for request in requests], device=device)
        uniforms = np.zeros((len(requests), self.max_new_tokens))
        for row, request in enumerate(requests):
            count = request.sampling.max_new_tokens
            uniforms[row, :count] = request_uniforms(request.seed, count)
        self.uniform_RT = torch.from_numpy(uniforms).to(device)
        self._token_RT = torch.zeros(len(requests), self.max_new_tokens, dtype=torch.long, device=device)
        self._logprob_RT = torch.zeros(len(requests), self.max_new_tokens, device=device)
        self._reason: list[FinishReason] = [FinishReason.LENGTH] * len(requests)
        self._length: list[int] = [0] * len(requests)
        self._active_R = torch.arange(len(requests), device=device)
        self._is_running_R = torch.ones(len(requests), dtype=torch.bool, device=device)
        self._has_stop = any(request.sampling.stop for request in requests)
        self.num_active = len(requests)

    def record(
        self,
        step: int,
        token_R: torch.Tensor,
        logprob_R: torch.Tensor,
        end_ids: torch.Tensor,
        matcher: StopStringMatcher,
    ) -> None:
        """Takes the tokens of one step and finds the rows that end with them."""
        self._token_RT[self._active_R, step] = token_R
        self._logprob_RT[self._active_R, step] = logprob_R
        is_end_R = torch.isin(token_R, end_ids)
        is_last_R = self._limit_R[self._active_R] == step + 1
        ends_R = (is_end_R | is_last_R) & self._is_running_R
        finished = self._matched_stop(step, token_R, is_end_R, matcher) if self._has_stop else {}
        for slot in ends_R.nonzero().squeeze(1).tolist():
            finished.setdefault(slot, FinishReason.STOP if bool(is_end_R[slot]) else FinishReason.LENGTH)
        for slot, reason in finished.items():
            row = int(self._active_R[slot])
            self._reason[row], self._length[row] = reason, step + 1
        if finished:
            self._is_running_R[list(finished)] = False
            self.num_active -= len(finished)

    def _matched_stop(
        self, step: int, token_R: torch.Tensor, is_end_R: torch.Tensor, matcher: StopStringMatcher
    ) -> dict[int, FinishReason]:
        matched: dict[int, FinishReason] = {}
        may_match_R = self._is_running_R & ~is_end_R
        rows = self._active_R.tolist()
        for slot, (token, may_match) in enumerate(zip(token_R.tolist(), may_match_R.tolist(), strict=True)):
            stop = self._requests[rows[slot]].sampling.stop
            if stop and may_match and matcher.could_complete(token, stop):
                ids = self._token_RT[rows[slot], : step + 1].tolist()
                if matcher.contains(ids, stop):
                    matched[slot] = FinishReason.STOP_STRING
        return matched

    def compact(self) -> torch.Tensor:
        """Drops finished rows; returns which of the computed rows stay."""
        keep = self._is_running_R.nonzero().squeeze(1)
        self._active_R, self._is_running_R = self._active_R[keep], self._is_running_R[keep]
        self.plan, self.uniform_RT = self.plan.select(keep), self.uniform_RT[keep]
        return keep

    def completions(self, policy_version: int) -> list[Completion]:
        """One completion per request."""
        tokens, logprobs = self._token_RT.tolist(), self._logprob_RT.tolist()
        return [
            Completion(tuple(tokens[row][:length]), tuple(logprobs[row][:length]), reason, policy_version)
            for row, (length, reason) in enumerate(zip(self._length, self._reason, strict=True))
        ]
