"""Samples become one number, exactly, however they are split."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.tracking import MetricBuffer, MetricSpec, Reduction, merge

finite = st.floats(-1e12, 1e12, allow_nan=False)
weights = st.floats(1e-6, 1e6)
samples = st.lists(st.tuples(finite, weights), min_size=1, max_size=40)


def buffer_of(reduction: Reduction) -> MetricBuffer:
    buffer = MetricBuffer()
    buffer.declare(MetricSpec("x", reduction))
    return buffer


def split(values: list, cuts: list[int]) -> list[list]:
    edges = [0, *sorted(cut % (len(values) + 1) for cut in cuts), len(values)]
    return [values[start:end] for start, end in pairwise(edges)]


def test_a_mean_counts_each_sample_by_its_own_weight() -> None:
    buffer = MetricBuffer()
    buffer.add("loss/policy_loss", 1.0, weight=3)
    buffer.add("loss/policy_loss", 5.0, weight=1)
    assert buffer.reduce() == {"loss/policy_loss": 2.0}  # (1*3 + 5*1) / 4


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", 2.0), ("sum", 6.0), ("min", 1.0), ("max", 3.0), ("last", 2.0), ("std", math.sqrt(2 / 3))],
)
def test_each_reduction(reduction: str, expected: float) -> None:
    buffer = buffer_of(Reduction(reduction))
    for value in (3.0, 1.0, 2.0):
        buffer.add("x", value)
    assert buffer.reduce() == {"x": expected}


def test_built_in_metrics_are_reduced_as_the_catalogue_says() -> None:
    buffer = MetricBuffer()
    for value in (1.0, 4.0):
        buffer.add_many({"length/response_max": value, "timing/rollout": value, "lr/actor": value, "my/own": value})
    assert buffer.reduce() == {
        "length/response_max": 4.0,
        "timing/rollout": 5.0,
        "lr/actor": 4.0,
        "my/own": 2.5,
    }


def test_reduce_empties_the_buffer_and_keeps_declarations() -> None:
    buffer = buffer_of(Reduction.MAX)
    buffer.add("x", 1.0)
    assert buffer.reduce() == {"x": 1.0}
    assert buffer.reduce() == {}
    buffer.add_many({"x": 1.0})
    buffer.add_many({"x": 7.0})
    assert buffer.reduce() == {"x": 7.0}


@given(samples, st.lists(st.integers(0, 100), max_size=5))
def test_a_mean_does_not_depend_on_how_samples_are_split_over_ranks(values, cuts) -> None:
    states = []
    for part in split(values, cuts):
        buffer = MetricBuffer()
        for value, weight in part:
            buffer.add("x", value, weight)
        states.append(buffer.state())
    whole = MetricBuffer()
    for value, weight in values:
        whole.add("x", value, weight)
    merged = merge(states).reduce()["x"]
    assert merged == whole.reduce()["x"]  # to the last bit
    products = sum(Fraction(value * weight) for value, weight in values)
    exact = products / sum(Fraction(weight) for _, weight in values)
    scale = max(abs(value) for value, _ in values)
    assert abs(Fraction(merged) - exact) <= Fraction(max(scale, 1e-300)) * Fraction(1, 10**12)


@given(samples, st.permutations(range(8)))
def test_a_mean_does_not_depend_on_the_order_of_ranks(values, order) -> None:
    states = []
    for rank in range(8):
        buffer = MetricBuffer()
        for value, weight in values[rank::8]:
            buffer.add("x", value, weight)
        states.append(buffer.state())
    assert merge(states).reduce().get("x") == merge([states[rank] for rank in order]).reduce().get("x")


@pytest.mark.parametrize("reduction", list(Reduction))
@given(values=st.lists(finite, min_size=1, max_size=30), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_every_reduction_gives_the_same_over_ranks_as_in_one_place(reduction, values, cuts) -> None:
    states = []
    for part in split(values, cuts):
        buffer = buffer_of(reduction)
        for value in part:
            buffer.add("x", value)
        states.append(buffer.state())
    whole = buffer_of(reduction)
    for value in values:
        whole.add("x", value)
    assert merge(states).reduce() == whole.reduce()


def moments(values: list[float]) -> tuple[int, float, float]:
    mean = math.fsum(values) / len(values)
    return len(values), mean, math.fsum((value - mean) ** 2 for value in values)


def test_a_deviation_of_two_steps_is_that_of_all_values() -> None:
    buffer = MetricBuffer()
    buffer.add_moments("advantage/std", 2, 1.0, 2.0)  # 0, 2
    buffer.add_moments("advantage/std", 2, 5.0, 2.0)  # 4, 6
    buffer.add_moments("advantage/std", 0, math.nan, 0.0)
    assert buffer.reduce() == {"advantage/std": math.sqrt(5.0)}  # of 0, 2, 4, 6: mean 3, squares 9 + 1 + 1 + 9


@given(st.lists(finite, min_size=1, max_size=40), st.lists(st.integers(0, 100), max_size=5))
def test_a_deviation_does_not_depend_on_the_split(values: list[float], cuts: list[int]) -> None:
    states = []
    for part in split(values, cuts):
        buffer = MetricBuffer()
        if part:
            buffer.add_moments("reward/episode_reward_std", *moments(part))
        states.append(json.loads(json.dumps(buffer.state())))
    merged = merge(states).reduce()["reward/episode_reward_std"]
    mean = sum(map(Fraction, values)) / len(values)
    exact = math.sqrt(sum((Fraction(value) - mean) ** 2 for value in values) / len(values))
    assert merged == pytest.approx(exact, rel=1e-9, abs=1e-13 * max(map(abs, values)))


def test_a_deviation_beside_a_large_mean_does_not_cancel() -> None:
    buffer = MetricBuffer()
    for value in (1e9 - 0.5, 1e9 + 0.5):
        buffer.add("advantage/std", value)
    assert buffer.reduce() == {"advantage/std": 0.5}


def test_a_deviation_of_nothing_or_of_infinities_is_nan_and_of_equal_values_zero() -> None:
    buffer = MetricBuffer()
    buffer.add_moments("advantage/std", 0, 1.0, 0.0)
    assert math.isnan(buffer.reduce()["advantage/std"])
    buffer.add_moments("advantage/std", 2, math.inf, math.nan)
    assert math.isnan(buffer.reduce()["advantage/std"])
    for _ in range(3):
        buffer.add_moments("advantage/std", 7, 0.1, 0.0)
    assert buffer.reduce() == {"advantage/std": 0.0}
    buffer.add("advantage/std", 1e300)
    assert math.isnan(buffer.reduce()["advantage/std"])  # its square is beyond a float


@pytest.mark.parametrize(
    ("key", "count", "deviations", "message"),
    [("a", 1, 0.0, "only std"), ("advantage/std", -1, 0.0, "negative"), ("advantage/std", 1, -1.0, "negative")],
)
def test_moments_are_checked(key: str, count: int, deviations: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricBuffer().add_moments(key, count, 0.0, deviations)


def test_a_sum_of_many_tenths_is_exact() -> None:
    buffer = buffer_of(Reduction.SUM)
    for _ in range(1000):
        buffer.add("x", 0.1)
    buffer.add("x", 1e16)
    buffer.add("x", -1e16)
    assert buffer.reduce()["x"] == math.fsum([0.1] * 1000)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_nan_is_kept(reduction: Reduction) -> None:
    buffer = buffer_of(reduction)
    for value in (1.0, 2.0, math.nan):
        buffer.add("x", value)
    assert math.isnan(buffer.reduce()["x"])


def test_infinity_is_kept_and_opposite_infinities_have_no_sum() -> None:
    buffer = MetricBuffer()
    buffer.add("a", math.inf)
    buffer.add("a", 1.0)
    buffer.add("b", math.inf)
    buffer.add("b", -math.inf)
    values = buffer.reduce()
    assert values["a"] == math.inf
    assert math.isnan(values["b"])


def test_a_fully_masked_micro_batch_influences_nothing() -> None:
    buffer = MetricBuffer()
    buffer.add("loss/policy_loss", 2.0, weight=5)
    buffer.add("loss/policy_loss", math.nan, weight=0)
    buffer.add("length/response_max", 9.0)
    buffer.add("length/response_max", -math.inf, weight=0)
    assert buffer.reduce() == {"loss/policy_loss": 2.0, "length/response_max": 9.0}


def test_a_mean_of_nothing_is_nan_and_a_sum_of_nothing_is_zero() -> None:
    buffer = buffer_of(Reduction.SUM)
    buffer.add("x", 3.0, weight=0)
    buffer.add("y", 3.0, weight=0)
    values = buffer.reduce()
    assert values["x"] == 0.0
    assert math.isnan(values["y"])


def test_state_goes_through_json_and_continues_exactly() -> None:
    buffer = MetricBuffer()
    buffer.add("x", 0.1, weight=3)
    buffer.add("kl/coef", 0.2)
    restored = MetricBuffer()
    restored.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    for each in (buffer, restored):
        each.add("x", 0.7, weight=2)
    assert restored.reduce() == buffer.reduce()


def test_a_state_is_a_copy() -> None:
    buffer = MetricBuffer()
    buffer.add("x", 1.0)
    state = buffer.state()
    buffer.add("x", 3.0)
    assert merge([state]).reduce() == {"x": 1.0}


def test_ranks_that_reduce_a_key_differently_are_an_error_that_names_it() -> None:
    one, other = buffer_of(Reduction.SUM), buffer_of(Reduction.MAX)
    one.add("x", 1.0)
    other.add("x", 1.0)
    with pytest.raises(ValueError, match=r"'x'.*sum.*max"):
        merge([one.state(), other.state()])


def test_a_reduction_cannot_change_under_samples() -> None:
    buffer = MetricBuffer()
    buffer.add("x", 1.0)
    with pytest.raises(ValueError, match="already reduced as mean"):
        buffer.declare(MetricSpec("x", Reduction.SUM))


def test_a_built_in_metric_cannot_be_redeclared() -> None:
    with pytest.raises(ValueError, match="already reduced as mean"):
        MetricBuffer().declare(MetricSpec("loss/policy_loss", Reduction.SUM))


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        np.float32(1.5),
        np.float64(1.5),
        np.array(1.5),
        np.array([1.5]),
        torch.tensor(1.5),
        torch.tensor([1.5]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor(1.5, requires_grad=True),
        Fraction(3, 2),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_numbers_of_any_package_are_taken(value: object) -> None:
    buffer = MetricBuffer()
    buffer.add("x", value)
    assert buffer.reduce() == {"x": 1.5}


@pytest.mark.parametrize(
    "value",
    ["1.5", None, [1.0], {"a": 1}, np.array([1.0, 2.0]), torch.ones(2), 1j, np.array("x")],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_an_error_that_names_key_and_type(value: object) -> None:
    with pytest.raises(TypeError, match=rf"'my/key' got a .*{type(value).__name__}"):
        MetricBuffer().add("my/key", value)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_is_a_positive_number(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        MetricBuffer().add("x", 1.0, weight)


@pytest.mark.parametrize("key", ["", 3, None])
def test_a_key_is_text(key: object) -> None:
    with pytest.raises(TypeError, match="non-empty text"):
        MetricBuffer().add(key, 1.0)  # type: ignore[arg-type]


def test_integers_and_truth_values_become_floats() -> None:
    buffer = MetricBuffer()
    buffer.add_many({"a": 3, "b": True, "c": np.bool_(False), "d": 10**400})
    assert buffer.reduce() == {"a": 3.0, "b": 1.0, "c": 0.0, "d": math.inf}
