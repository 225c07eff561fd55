"""The SmolLM2 example: questions whose answers reasoning-gym checks, and a reward that leads there step by step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from verl.config import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
reasoning_gym = pytest.importorskip("reasoning_gym", reason="comes with the extra `smollm2`")


def load(name: str) -> ModuleType:
    """Loads a script by path, for every example has one of this name."""
    spec = importlib.util.spec_from_file_location(f"smollm2_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def splits(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("data")
    load("prepare").prepare_data(folder)
    return {split: pq.read_table(folder / f"reasoning_gym_{split}.parquet").to_pylist() for split in ("train", "val")}


@pytest.fixture(scope="module")
def compute_score():
    return load("reward").compute_score


@pytest.fixture
def gcd(splits) -> dict[str, Any]:
    """A question whose answer is 2."""
    rows = (row for row in splits["train"] if row["data_source"] == "reasoning_gym/gcd")
    return next(row for row in rows if row["reward_model"]["ground_truth"] == "2")


def score(compute_score, row: dict[str, Any], reply: str) -> dict[str, float]:
    return compute_score(row["data_source"], reply, row["reward_model"]["ground_truth"], row["extra_info"])


def test_rows_have_the_upstream_columns_and_both_tasks(splits):
    for split, count in (("train", 400), ("val", 32)):
        rows = splits[split]
        assert len(rows) == count
        for task in ("chain_sum", "gcd"):
            assert sum(row["data_source"] == f"reasoning_gym/{task}" for row in rows) == count // 2
        for row in rows:
            assert [message["role"] for message in row["prompt"]] == ["user"]
            assert row["prompt"][0]["content"].endswith("Reply with only the number.")
            assert row["reward_model"]["style"] == "rule"


def test_no_question_of_training_is_held_out(splits):
    train, val = ({row["prompt"][0]["content"] for row in splits[split]} for split in ("train", "val"))
    assert not train & val


def test_every_ground_truth_scores_one(splits, compute_score):
    for row in splits["train"] + splits["val"]:
        expected = pytest.approx({"score": 1.0, "exact": 1.0, "named": 1.0, "bare": 1.0})
        assert score(compute_score, row, row["reward_model"]["ground_truth"]) == expected


def test_making_the_data_again_gives_the_same_and_a_second_run_is_no_work(splits, tmp_path, capsys):
    prepare = load("prepare")
    prepare.prepare_data(tmp_path)
    assert pq.read_table(tmp_path / "reasoning_gym_train.parquet").to_pylist() == splits["train"]
    capsys.readouterr()
    prepare.prepare_data(tmp_path)
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize("reply", ["2", " 2\n", "2."])
def test_only_the_right_number_scores_one(compute_score, gcd, reply):
    assert score(compute_score, gcd, reply)["score"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("reply", "named", "bare"),
    [
        ("The GCD is 2.", 1.0, 0.0),
        ("3", 0.0, 1.0),
        ("-2", 0.0, 1.0),
        ("12", 0.0, 1.0),
        ("The GCD is 12.", 0.0, 0.0),
        ("two", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_a_reply_that_is_not_exact_gets_its_parts(compute_score, gcd, reply, named, bare):
    result = score(compute_score, gcd, reply)
    assert result["named"] == named
    assert result["bare"] == bare
    assert result["exact"] == 0.0
    assert result["score"] < 0.3


def test_the_configuration_is_valid_and_names_what_the_script_makes():
    config = load_config(EXAMPLE / "config.yaml", [])
    assert config.data.train_files == ["data/reasoning_gym_train.parquet"]
    assert config.data.val_files == ["data/reasoning_gym_val.parquet"]
    assert config.actor_rollout_ref.model.path == "models/smollm2-135m-instruct"
