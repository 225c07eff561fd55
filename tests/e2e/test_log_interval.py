"""A record over several steps is exact: the same as if all had been one batch."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from verl.journal import JournalReader
from verl.trainer.ppo_trainer import PPOTrainer


def test_a_record_over_three_steps_equals_what_the_samples_say(make_config, tmp_path):
    PPOTrainer(make_config("algorithm.type=grpo", "trainer.log_step_interval=3", "trainer.total_steps=3")).train()
    run = tmp_path / "run"
    rows = [
        row
        for path in sorted(run.glob("trajectories/steps/train/*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) == 12
    rewards = np.array([row["reward"] for row in rows])
    lengths = [len(row["response_ids"]) for row in rows]
    (record,) = [r.fields["metrics"] for r in JournalReader(run).records() if r.kind == "metrics" and r.step == 3]
    assert record["reward/episode_reward_mean"] == pytest.approx(rewards.mean(), abs=1e-6)
    assert record["reward/episode_reward_std"] == pytest.approx(rewards.std(), abs=1e-6)
    assert record["reward/episode_reward_min"] == pytest.approx(rewards.min(), abs=1e-6)
    assert record["reward/episode_reward_max"] == pytest.approx(rewards.max(), abs=1e-6)
    assert record["length/response_mean"] == pytest.approx(np.mean(lengths))
    assert record["length/response_max"] == max(lengths)
    # Entropies are stored as 16-bit floats.
    entropies = np.concatenate([row["entropy"] for row in rows]).astype(float)
    assert record["policy/entropy"] == pytest.approx(entropies.mean(), rel=1e-3)
