"""The value that flows from rollout to reward, update and store: one try at one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Trajectory:
    """One trajectory: prompt, what the policy sampled, and what became known of it later.

    Example (single turn): `Trajectory(step=3, sample_index=12, rollout_n=0, validate=False,
    data_source="stocks", messages=[{"role": "user", "content": "..."}, {"role": "assistant",
    "content": "up"}], prompt_ids=[1, 5, 9], response_ids=[7, 2], response_mask=[1, 1],
    rollout_logprobs=[-0.1, -0.02], finish_reason="stop", policy_version=3)`.

    Attributes:
        step: Step that sampled it. sample_index: Row of the prompt in its data set.
        rollout_n: Number within its group. validate: From validation.
        messages: The conversation with the response as last message.
        response_ids: All tokens after the prompt; response_mask: 1 where the policy sampled
            the token (trainable), 0 for tool, template and user tokens.
        rollout_logprobs: Log-prob at sampling, 0.0 where response_mask is 0.
        finish_reason: "stop", "stop_string", "length" or "error".
        reward: Terminal reward (weighted sum of parts), nothing until it is computed.
        reward_parts: Unweighted value of each named part.
        reward_details: What else the reward functions said, as text.
        token_facts: Late facts, one float array per name over response tokens (`old_logprob`,
            `ref_logprob`, `advantage`, `return`, `value`, `entropy`).
    """

    step: int
    sample_index: int
    rollout_n: int
    validate: bool
    data_source: str
    messages: list[dict[str, Any]]
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    rollout_logprobs: list[float]
    finish_reason: str
    policy_version: int
    prompt_text: str = ""
    response_text: str = ""
    ground_truth: Any = None
    extra_info: dict[str, Any] = field(default_factory=dict)
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    reward_details: dict[str, str] = field(default_factory=dict)
    token_facts: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def is_truncated(self) -> bool:
        """Whether the token limit cut it: truncated is not finished."""
        return self.finish_reason == "length"
