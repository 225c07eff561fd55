"""Single-turn sampling: prompts to requests, completions to trajectories."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from verl.data.prompts import Prompt
from verl.rollout.engine import Completion, Engine, GenerateRequest, SamplingParams
from verl.tracing.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request and what it is for: sample `rollout_n` of `prompt` in `step`."""

    prompt: Prompt
    rollout_n: int
    step: int
    validate: bool
    request: GenerateRequest


def derive_seed(run_seed: int, step: int, sample_index: int, rollout_n: int, validate: bool) -> int:
    """Seed of one sample, from what it is and nothing else: a resumed run samples what an unbroken one would.

    Returns:
        63 bits of BLAKE2b over the five values.
    """
    packed = struct.pack("<qqqq?", run_seed, step, sample_index, rollout_n, validate)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def build_requests(
    prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, seed: int, step: int, validate: bool = False
) -> list[SampleRequest]:
    """`n` requests per prompt, group by group in the order of the prompts.

    A prompt that comes twice in the batch gets other numbers and seeds the second time.

    Example: two prompts and `n=3` give six requests: the first three share prompt 0.
    """
    seen: Counter[int] = Counter()
    requests = []
    for prompt in prompts:
        first = seen[prompt.index]
        seen[prompt.index] += n
        ids = tuple(prompt.ids)
        for rollout_n in range(n):
            sample_seed = derive_seed(seed, step, prompt.index, first + rollout_n, validate)
            request = GenerateRequest(prompt_ids=ids, sampling=sampling, seed=sample_seed)
            requests.append(SampleRequest(prompt, first + rollout_n, step, validate, request))
    return requests


async def collect(
    engine: Engine, requests: Sequence[SampleRequest], tokenizer: PreTrainedTokenizerBase
) -> list[Trajectory]:
    """Samples all requests and returns their trajectories, in order, with the text of each response.

    Special tokens are left out of `response_text`.
    """
    completions = await engine.generate([item.request for item in requests])
    return [
        _trajectory(item, completion, _text(completion, tokenizer))
        for item, completion in zip(requests, completions, strict=True)
    ]


def _text(completion: Completion, tokenizer: PreTrainedTokenizerBase) -> str:
    ids = list(completion.token_ids)
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)  # type: ignore[return-value]


def _trajectory(item: SampleRequest, completion: Completion, text: str) -> Trajectory:
    prompt = item.prompt
    return Trajectory(
        step=item.step,
        sample_index=prompt.index,
        rollout_n=item.rollout_n,
        validate=item.validate,
        data_source=prompt.data_source,
        messages=[*prompt.messages, {"role": "assistant", "content": text}],
        prompt_ids=list(prompt.ids),
        response_ids=list(completion.token_ids),
        response_mask=[1] * len(completion.token_ids),
        rollout_logprobs=list(completion.logprobs),
        finish_reason=completion.finish_reason.value,
        policy_version=completion.policy_version,
        prompt_text=prompt.text,
        response_text=text,
        ground_truth=prompt.ground_truth,
        extra_info=prompt.extra_info,
    )
