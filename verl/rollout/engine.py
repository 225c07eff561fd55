"""The rollout engine protocol: token ids in, token ids and log-probs out.

One protocol for all engines: `hf` in this process, later vLLM and OpenAI-compatible servers.
An engine knows nothing of chat templates, rewards or steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FinishReason(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    """The policy sampled an end token (kept as the last token)."""
    STOP_STRING = "stop_string"
    """The decoded text contains a stop string (its tokens are kept)."""
    LENGTH = "length"
    """The token limit was reached: truncated, not finished."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `temperature=0` is greedy; `top_k=0` and `top_p=1.0` keep all tokens."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sample to draw.

    Example: `GenerateRequest(prompt_ids=(1, 17, 4), sampling=SamplingParams(max_new_tokens=16), seed=7)`.
    Requests with equal `prompt_ids` share one prefill. The result depends on `seed` and the weights,
    not on what else is in the batch (up to the rounding of batched arithmetic).
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled.

    Attributes:
        token_ids: Sampled ids, with the end token if there was one.
        logprobs: Natural log-prob of each sampled token under the temperature-scaled full softmax
            (before top-p/top-k cut it; for greedy at temperature 1), so it compares with the trainer's.
        finish_reason: Why it ended.
        policy_version: Version of the weights that sampled it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int


class Engine(Protocol):
    """Anything that can sample from the current policy."""

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Samples one completion per request, in the order of the requests."""
        ...

    async def update_weights(self, policy_version: int) -> None:
        """Makes the engine use the newest weights and stamps what follows with `policy_version`."""
        ...

    async def close(self) -> None:
        """Frees what the engine holds."""
        ...
