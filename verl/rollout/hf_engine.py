"""The in-process engine: batched decoding with transformers modules.

Equal prompts are read once and their keys and values shared out to all samples of the group; ended rows leave the
batch; each request draws from its own seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedTokenizerBase

from verl.models.policy import PolicyModel
from verl.models.source import quiet_transformers
from verl.rollout.batch_state import BatchState
from verl.rollout.cached_model import CachedModel
from verl.rollout.engine import Completion, GenerateRequest
from verl.rollout.request_checks import check_requests
from verl.rollout.stop_strings import StopStringMatcher

# Ended rows are dropped once fewer than this share of the batch is still sampling: dropping copies the cache.
_COMPACT_BELOW = 0.75


class HfEngine:
    """Samples from a policy in this process.

    Example: `completions = asyncio.run(HfEngine(policy, tokenizer).generate(requests))`.

    Args:
        policy: The model being trained; sampled from as it is at each call, LoRA adapter included.
        tokenizer: Its tokenizer (end tokens, decoding for stop strings).
        max_batch_size: Most rows decoded at once; nothing = all.

    Raises:
        ModelError: The model does not decode over a cache in the way of transformers.
    """

    def __init__(
        self, policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, *, max_batch_size: int | None = None
    ) -> None:
        self._policy = policy
        self._max_batch_size = max_batch_size
        self._matcher = StopStringMatcher(tokenizer)
        self._end_ids = _end_ids(policy, tokenizer)
        self._version = 0
        with self._sampling_mode():
            self._model = CachedModel(policy)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Samples one completion per request, in the order of the requests.

        Raises:
            DataError: A prompt is empty.
            ConfigError: Prompt and `max_new_tokens` together exceed the model's positions, or a setting is unusable.
            VerlError: The policy gives no probabilities (NaN): training has diverged.
        """
        check_requests(requests, self._policy.max_positions)
        completions: dict[int, Completion] = {}
        with self._sampling_mode():
            for batch in self._batches(requests):
                sampled = self._decode([requests[index] for index in batch])
                completions.update(zip(batch, sampled, strict=True))
        return [completions[index] for index in range(len(requests))]

    async def update_weights(self, policy_version: int) -> None:
        """Stamps what follows with `policy_version`; the weights are the trained ones already."""
        self._version = policy_version

    async def close(self) -> None:
        """Nothing is held between calls."""

    def _decode(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        batch = BatchState(requests, self._end_ids, self._matcher)
        number_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests))}
        index_R = torch.tensor([number_of[request.prompt_ids] for request in requests], device=self._policy.device)
        logits_RV, state = self._model.prefill(list(number_of), index_R, room=batch.max_new_tokens)
        for step in range(batch.max_new_tokens):
            token_R = batch.draw(step, logits_RV)
            if not batch.num_running:
                break
            if batch.num_running < _COMPACT_BELOW * batch.num_slots:
                keep = batch.compact()
                state.select(keep)
                token_R = token_R[keep]
            logits_RV = self._model.step(state, token_R)
        return batch.completions(self._version)

    def _batches(self, requests: Sequence[GenerateRequest]) -> Iterator[list[int]]:
        """Indices of requests to decode together: of similar prompt length, equal prompts side by side."""
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids))
        size = self._max_batch_size or len(order)
        batch: list[int] = []
        for index in order:
            is_new_length = batch and len(requests[index].prompt_ids) != len(requests[batch[0]].prompt_ids)
            if len(batch) == size or (is_new_length and not self._policy.can_pad):
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
            # Quiet: some models warn of padding tokens, which ended rows do feed.
            with quiet_transformers(), torch.inference_mode(), self._policy.autocast():
                yield
        finally:
            self._policy.network.train(was_training)


def _end_ids(policy: PolicyModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """All ids that end a response: of the generation settings and of the tokenizer."""
    generation = policy.transformer.generation_config
    configured = None if generation is None else generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    known = {index for index in [*ids, tokenizer.eos_token_id] if isinstance(index, int)}
    return torch.tensor(sorted(known), device=policy.device)
