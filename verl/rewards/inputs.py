"""The values that go into and come out of rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RewardInput:
    """One finished response with all that a reward may look at.

    Example: `RewardInput(index=12, data_source="stocks", messages=[{"role": "user", "content": "Up?"}],
    prompt="<user>Up?<assistant>", response="up", finish_reason="stop", ground_truth="up", extra_info={})`.

    Attributes:
        index: Row of the prompt in its data set, for messages.
        origin: File and row of the prompt (`PromptDataset.origin`), for messages; may be empty.
        messages: The conversation before the response.
        prompt: The rendered prompt.
        response: Decoded response.
        finish_reason: Why it ended: "stop", "stop_string" or "length".
    """

    index: int
    data_source: str
    messages: list[dict[str, Any]]
    prompt: str
    response: str
    finish_reason: str
    ground_truth: Any
    extra_info: dict[str, Any]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The reward of one response.

    Example: `RewardResult(total=1.2, parts={"accuracy": 1.0, "format": 0.4}, details={"accuracy/pred": "up"})`
    with the weights 1.0 and 0.5.

    Attributes:
        total: Weighted sum of the scores that apply.
        parts: Unweighted score of each function that applies, by its name; its further named numbers
            as `name/key`; the reward model's as `model_score`.
        details: Further named values of the functions that are not numbers, as text.
    """

    total: float
    parts: dict[str, float]
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A conversation for a reward model; the response is the last message (role assistant)."""

    messages: list[dict[str, Any]]


class TextScorer(Protocol):
    """A reward model, or anything that scores whole conversations."""

    def score(self, texts: list[ScoredText]) -> list[float]:
        """Scores the conversations, one finite number each, in their order."""
        ...
