"""Validation: sampling the held-out prompts with settings of their own, and the generations to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from verl.tracing.trajectory import Trajectory

GENERATION_COLUMNS = ("step", "data_source", "prompt", "output", "reference", "score", "parts")


def num_generations(setting: int | float, num_prompts: int) -> int:
    """How many generations to show: a count, or a share of the prompts if it is a fraction below 1."""
    return math.ceil(setting * num_prompts) if 0 < setting < 1 else min(int(setting), num_prompts)


def generation_rows(trajectories: Sequence[Trajectory], count: int, step: int) -> list[list[Any]]:
    """Rows of the table of generations: evenly spaced over the prompts, so always the same ones."""
    first_samples = [trajectory for trajectory in trajectories if trajectory.rollout_n == 0]
    chosen = [first_samples[index * len(first_samples) // count] for index in range(count)] if count else []
    return [
        [step, t.data_source, t.prompt_text, t.response_text, t.ground_truth, t.reward, dict(t.reward_parts)]
        for t in chosen
    ]
