"""Metrics of several processes: one number each, whoever had which samples."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl.distributed.metric_reduction import RanksError, _decode, _disagreement, _encode, reduce_metrics
from verl.journal import JournalReader, RunDirectory
from verl.tracking import MetricBuffer, MetricSpec, Reduction, merge

PROGRAM = Path(__file__).parent / "rank_program.py"
KEYS = {"mean": Reduction.MEAN, "sum": Reduction.SUM, "min": Reduction.MIN, "max": Reduction.MAX, "std": Reduction.STD}

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
any_float = st.floats(min_value=-1e100, max_value=1e100) | st.sampled_from([math.nan, math.inf, -math.inf])
weights = st.integers(0, 4096).map(float) | st.floats(0, 1e6)
samples = st.lists(st.tuples(st.sampled_from(sorted(KEYS)), any_float, weights), max_size=40)


def new_buffer() -> MetricBuffer:
    buffer = MetricBuffer()
    for key, reduction in KEYS.items():
        buffer.declare(MetricSpec(key=key, description="For a test.", reduction=reduction))
    return buffer


def reduced(parts: list[list[tuple[str, float, float]]]) -> dict[str, bytes]:
    """What ranks with these samples get, through the bytes that travel; each number as text with all its bits."""
    received = []
    for part in parts:
        buffer = new_buffer()
        for key, value, weight in part:
            buffer.add(key, value, weight)
        received.append(_decode(_encode(buffer.state(), [])).state)
    return {key: (value + 0.0).hex() for key, value in merge(received).reduce().items()}


@given(samples, st.randoms(use_true_random=False), st.integers(1, 8))
@example([("sum", 1e16, 1.0), ("sum", 1.0, 1.0), ("sum", -1e16, 1.0)], random.Random(1), 3)
@example([("mean", 0.1, 3.0), ("mean", 0.2, 0.7), ("mean", 0.3, 1e-9)], random.Random(2), 3)
@example([("mean", math.inf, 1.0), ("mean", -math.inf, 1.0), ("std", math.nan, 1.0)], random.Random(3), 2)
def test_no_split_and_no_order_of_the_samples_changes_a_bit(
    drawn: list[tuple[str, float, float]], chance: random.Random, num_ranks: int
) -> None:
    shuffled = chance.sample(drawn, len(drawn))
    parts: list[list[tuple[str, float, float]]] = [[] for _ in range(num_ranks)]
    for sample in shuffled:
        parts[chance.randrange(num_ranks)].append(sample)
    assert reduced(parts) == reduced([drawn])


@given(st.lists(st.tuples(finite, st.integers(1, 512)), min_size=1, max_size=30))
def test_the_mean_is_the_weighted_mean_to_one_rounding_of_the_sum_and_one_of_the_quotient(
    drawn: list[tuple[float, int]],
) -> None:
    total = sum(Fraction(value * weight) for value, weight in drawn)
    exact = total / sum(weight for _, weight in drawn)
    found = float.fromhex(reduced([[("mean", value, float(weight))] for value, weight in drawn])["mean"])
    assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(2, 2**53) + Fraction(5e-324)


@given(samples)
def test_what_travels_is_the_state_to_the_last_bit(drawn: list[tuple[str, float, float]]) -> None:
    buffer = new_buffer()
    for key, value, weight in drawn:
        buffer.add(key, value, weight)
    assert repr(_decode(_encode(buffer.state(), [])).state) == repr(buffer.state())


def test_a_disagreement_names_metric_and_ranks() -> None:
    mean, sum_ = MetricBuffer(), MetricBuffer()
    sum_.declare(MetricSpec(key="x", description="A sum.", reduction=Reduction.SUM))
    mean.add("x", 1.0)
    sum_.add("x", 1.0)
    states = [mean.state(), {}, sum_.state()]
    assert "'x' is reduced as mean on rank 0 and as sum on rank 2" in _disagreement(states)
    assert _disagreement([mean.state(), {}, mean.state()]) == ""


def test_one_process_needs_no_process_group() -> None:
    buffer = MetricBuffer()
    buffer.add("loss", 1.0, weight=3)
    buffer.add("loss", 2.0)
    assert reduce_metrics(buffer) == {"loss": 1.25}
    assert reduce_metrics(buffer) == {}


def test_several_processes_without_a_process_group_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    buffer = MetricBuffer()
    buffer.add("loss", 1.0)
    with pytest.raises(RanksError, match=r"process 1 of 4 \(RANK, WORLD_SIZE\), but"):
        reduce_metrics(buffer)
    assert len(buffer) == 1


def run_ranks(situations: str, world_size: int, folder: Path) -> list[Any]:
    """What each rank wrote down; nothing for one that ended without."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    results = [folder / f"{rank}.json" for rank in range(world_size)]
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, situations, str(rank), str(world_size), folder / "store", result],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert "Traceback" not in "".join(errors), "\n".join(errors)
    return [json.loads(result.read_text()) if result.exists() else None for result in results]


# One test of many situations: three processes take long to start, and each worker would start them again.
def test_three_processes_get_the_metrics_of_all_or_the_same_error(tmp_path: Path) -> None:
    found = run_ranks("agreeable", 3, tmp_path)
    three_ranks = {situation: [of_rank[situation] for of_rank in found] for situation in found[0]}
    assert three_ranks["shared_and_own_keys"] == [{"loss": 3.25, "only_0": 5.0, "only_2": 7.0}, {}, {}]
    assert three_ranks["no_samples_at_all"] == [{}, {}, {}]
    assert three_ranks["not_finite"] == [{"infinite": "inf", "nothing": "nan"}, {}, {}]
    assert three_ranks["sums_that_rounding_would_spoil"] == [{"sum": 1.0}, {}, {}]
    assert three_ranks["odd_keys"] == [{"损失/\udc80 \n": 2.0}, {}, {}]
    assert three_ranks["large_states"] == [3000, 0, 0]
    assert three_ranks["buffers_are_empty_afterwards"] == [[0, {}]] * 3
    for rank, (error, num_kept, next_metrics) in enumerate(three_ranks["different_declarations"]):
        assert "'tokens' is reduced as mean on rank 0 and as sum on rank 2" in error
        assert num_kept == 1
        assert next_metrics == ({"after": 1.0} if rank == 0 else {})
    check_the_run_of_three_ranks(tmp_path / "run", three_ranks["tracking_on_every_rank"])
    outside, first, second = three_ranks["some_ranks_only"]
    assert "not in the group" in outside
    assert (first, second) == ({"loss": 1.5}, {})
    first, _, last = three_ranks["another_collective"]
    assert "rank 0 reduces metrics while rank 1 is in another collective call" in first
    assert "rank 2 reduces metrics while rank 1" in last


def check_the_run_of_three_ranks(run: Path, classes: list[str]) -> None:
    assert classes == ["Tracking", "SilentTracking", "SilentTracking"]
    series = JournalReader(run).metrics()["loss"]
    assert series.values.tolist() == [1.0, 1.0]
    records = list(JournalReader(run).records())
    assert [record.fields["text"] for record in records if record.kind == "text"] == ["of rank 0"] * 2
    (alert,) = [record.fields for record in records if record.kind == "alert"]
    assert (alert["title"], alert["text"]) == ("slow", "ranks 1, 2: the disk is slow")
    notes = [
        record.fields["text"] for record in records if record.fields.get("level") == "warning" and record.kind == "note"
    ]
    assert notes == ["rank 1: 1 samples skipped", "rank 2: 2 samples skipped"]
    assert RunDirectory.open(run).status == "finished"


def test_a_rank_that_died_or_does_not_come_is_an_error_that_says_where_to_look(tmp_path: Path) -> None:
    found, _ = run_ranks("unlucky", 2, tmp_path)
    for situation in ("a_rank_that_does_not_come", "a_rank_that_died"):
        assert "rank 0 of 2 waited in reduce_metrics for the other ranks in vain" in found[situation]
        assert "first error in the output of the other ranks" in found[situation]
