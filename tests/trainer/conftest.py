"""A tiny policy and trajectories of unequal length, for tests of batches and updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from verl.config.schema import ModelConfig
from verl.models.loading import load_policy, load_tokenizer
from verl.models.policy import PolicyModel
from verl.tracing.trajectory import Trajectory

PROMPT_LENGTHS = (3, 3, 5, 5, 2, 2)
RESPONSE_LENGTHS = (4, 1, 7, 2, 5, 3)
REWARDS = (1.0, 0.0, 0.5, 0.25, 0.0, 1.0)


@pytest.fixture
def make_policy(model_folder: Path) -> Callable[[], PolicyModel]:
    def make() -> PolicyModel:
        tokenizer = load_tokenizer(str(model_folder))
        return load_policy(ModelConfig(path=str(model_folder)), "cpu", tokenizer=tokenizer)

    return make


@pytest.fixture
def trajectories() -> list[Trajectory]:
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(4, 60, (count,), generator=generator).tolist()

    made = []
    for row, (prompt, response) in enumerate(zip(PROMPT_LENGTHS, RESPONSE_LENGTHS, strict=True)):
        mask = [1] * response
        if response > 4:
            mask[2] = 0  # as a tool token in the middle
        made.append(
            Trajectory(
                step=1,
                sample_index=row // 2,
                rollout_n=row % 2,
                validate=False,
                data_source="test",
                messages=[],
                prompt_ids=ids(prompt),
                response_ids=ids(response),
                response_mask=mask,
                rollout_logprobs=(-torch.rand(response, generator=generator)).tolist(),
                finish_reason="length" if row == 2 else "stop",
                policy_version=0,
                reward=REWARDS[row],
                reward_parts={"score": REWARDS[row]},
            )
        )
    return made
