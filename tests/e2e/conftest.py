"""Whole runs on a tiny model: small enough for a fraction of a second per step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl.config import PPOConfig, load_config


@pytest.fixture
def make_config(model_folder: Path, tmp_path: Path) -> Callable[..., PPOConfig]:
    """Configuration of a tiny run in `tmp_path/run`; arguments are further overrides, `key=value`."""

    def make(*overrides: str) -> PPOConfig:
        return load_config(
            None,
            [
                f"actor_rollout_ref.model.path={model_folder}",
                f"trainer.log_dir={tmp_path / 'run'}",
                "trainer.logger=[]",
                "trainer.async_log=false",
                "trainer.num_threads=1",
                "trainer.total_steps=6",
                "data.train_batch_size=2",
                "data.max_response_length=6",
                "data.max_val_samples=4",
                "actor_rollout_ref.rollout.n=2",
                "actor_rollout_ref.actor.optim.lr=1e-3",
                "critic.optim.lr=1e-3",
                *overrides,
            ],
        )

    return make
