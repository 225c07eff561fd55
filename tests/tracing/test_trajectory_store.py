"""The trajectory store: what goes in comes out, files are whole or absent, failures are told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from verl.errors import JournalError
from verl.tracing.trajectory import Trajectory
from verl.tracing.trajectory_store import TrajectoryStore, step_file, step_files


def make(step: int = 3, row: int = 0, **changes: object) -> Trajectory:
    values: dict[str, object] = {
        "step": step,
        "sample_index": row,
        "rollout_n": 1,
        "validate": False,
        "data_source": "stocks",
        "messages": [{"role": "user", "content": "Up?"}, {"role": "assistant", "content": "up"}],
        "prompt_ids": [1, 5],
        "response_ids": [7, 8, 2],
        "response_mask": [1, 0, 1],
        "rollout_logprobs": [-0.5, 0.0, -0.25],
        "finish_reason": "stop",
        "policy_version": 2,
        "prompt_text": "<u>Up?",
        "response_text": "up",
        "ground_truth": {"answer": "up"},
        "extra_info": {"row": row},
        "reward": 1.25,
        "reward_parts": {"accuracy": 1.0, "format": 0.5},
        "reward_details": {"accuracy/pred": "up"},
    }
    return Trajectory(**{**values, **changes})  # type: ignore[arg-type]


def written(folder: Path, trajectories: list[Trajectory], step: int = 3) -> list[dict]:
    store = TrajectoryStore(folder)
    store.write(step, trajectories, validate=False)
    store.flush()
    store.close()
    return pq.read_table(step_file(folder, step, validate=False)).to_pylist()


def test_everything_known_of_a_trajectory_is_in_its_row(tmp_path):
    facts = {
        "old_logprob": np.array([-0.5625, 0.0, -0.25], dtype=np.float32),
        "ref_logprob": np.array([-1.0, 0.0, -0.5], dtype=np.float32),
        "advantage": np.array([0.5, 0.0, -0.5], dtype=np.float32),
    }
    (row,) = written(tmp_path, [make(token_facts=facts)])
    assert (row["step"], row["sample_index"], row["rollout_n"], row["policy_version"]) == (3, 0, 1, 2)
    assert json.loads(row["messages"])[1] == {"role": "assistant", "content": "up"}
    assert json.loads(row["ground_truth"]) == {"answer": "up"}
    assert (row["prompt_ids"], row["response_ids"], row["response_mask"]) == ([1, 5], [7, 8, 2], [1, 0, 1])
    assert (row["reward"], dict(row["reward_parts"])) == (1.25, {"accuracy": 1.0, "format": 0.5})
    assert dict(row["reward_details"]) == {"accuracy/pred": "up"}
    assert row["rollout_logprob"] == [-0.5, 0.0, -0.25]
    assert row["train_minus_rollout_logprob"] == [-0.0625, 0.0, 0.0]
    assert row["ref_minus_rollout_logprob"] == [-0.5, 0.0, -0.25]
    assert row["advantage"] == [0.5, 0.0, -0.5]
    assert row["value"] is None


def test_a_small_difference_of_large_logprobs_keeps_its_precision(tmp_path):
    facts = {"old_logprob": np.array([-30.001], dtype=np.float32)}
    trajectory = make(response_ids=[7], response_mask=[1], rollout_logprobs=[-30.0], token_facts=facts)
    (row,) = written(tmp_path, [trajectory])
    assert row["train_minus_rollout_logprob"][0] == pytest.approx(-0.001, rel=2e-3)


def test_hostile_text_and_planted_secrets(tmp_path):
    text = 'NUL \x00, quote ", [red]markup[/], \u202e right to left, emoji \U0001f600, '
    text += "sk-proj-abcdefghijklmnopqrstuvwxyz123456"
    (row,) = written(tmp_path, [make(response_text=text, extra_info={"api_key": "planted-secret-value", "text": text})])
    assert "\U0001f600" in row["response_text"]
    assert "abcdefghijklmnopqrstuvwxyz123456" not in str(row)
    assert "planted-secret-value" not in str(row)


def test_secrets_in_names_of_sources_parts_and_details_are_masked(tmp_path):
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz123456"
    details = {"score/api_key": "planted-detail", f"{key}/text": "x"}
    (row,) = written(tmp_path, [make(data_source=key, reward_parts={key: 1.0}, reward_details=details)])
    assert key not in str(row)
    assert "planted-detail" not in str(row)
    assert [value for _, value in row["reward_parts"]] == [1.0]


def test_steps_of_training_and_validation_are_apart_and_listed(tmp_path):
    store = TrajectoryStore(tmp_path)
    store.write(2, [make(step=2)], validate=False)
    store.write(10, [make(step=10)], validate=False)
    store.write(2, [make(step=2, validate=True)], validate=True)
    store.close()
    listed = [(path.parent.name, step) for path, step in step_files(tmp_path)]
    assert listed == [("train", 2), ("train", 10), ("val", 2)]


def test_a_folder_that_cannot_be_written_is_told_at_the_next_call(tmp_path):
    (tmp_path / "steps").write_text("a file where a folder must be")
    store = TrajectoryStore(tmp_path)
    store.write(1, [make()], validate=False)
    with pytest.raises(
        JournalError, match=r"trajectories of step_00000001 .*Free space there or set another trainer.log_dir"
    ):
        store.flush()
    store.close()


def test_rewriting_a_step_leaves_one_whole_file(tmp_path):
    written(tmp_path, [make(reward=0.0)])
    (row,) = written(tmp_path, [make(reward=1.0)])
    assert row["reward"] == 1.0
    assert os.listdir(tmp_path / "steps" / "train") == ["step_00000003.parquet"]
