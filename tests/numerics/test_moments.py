import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric_strategies import batches, numbers, numeric_settings, with_junk

from verl.algorithms.statistics import Moments, explained_variance


def test_moments_by_hand():
    # 1 2 6: mean 3, squared deviations 4 + 1 + 9 = 14.
    moments = Moments.of(torch.tensor([[1.0, 2.0], [float("nan"), 6.0]]), torch.tensor([[1, 1], [0, 1]]))
    assert moments == Moments(count=3, mean=3.0, sum_squared_deviations=14.0, minimum=1.0, maximum=6.0)
    assert moments.variance(ddof=1) == 7.0
    assert moments.variance(ddof=0) == pytest.approx(14 / 3)
    assert moments.std(ddof=1) == pytest.approx(math.sqrt(7))


def test_booleans_count_as_zero_and_one():
    assert Moments.of(torch.tensor([True, False, True, True])).mean == 0.75


def test_merging_by_hand():
    # 0 2 (mean 1, squares 2) and 7 (mean 7): all have mean 3, squares 9 + 1 + 16 = 26.
    merged = Moments.of(torch.tensor([0.0, 2.0])) + Moments.of(torch.tensor([7.0]))
    assert merged == Moments(count=3, mean=3.0, sum_squared_deviations=26.0, minimum=0.0, maximum=7.0)


def test_no_values_have_no_mean_and_change_no_sum():
    empty = Moments.of(torch.ones(2, 2), torch.zeros(2, 2))
    some = Moments.of(torch.tensor([1.0, 4.0]))
    assert empty.count == 0
    assert math.isnan(empty.mean)
    assert math.isnan(empty.variance(ddof=1))
    assert empty + some == some == some + empty
    assert (Moments.empty() + Moments.empty()).count == 0


@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.nan]])
def test_a_nan_shows_in_the_sum_whatever_the_order(values):
    first, second = (Moments.of(torch.tensor([value])) for value in values)
    merged = first + second
    assert math.isnan(merged.mean)
    assert math.isnan(merged.minimum)
    assert math.isnan(merged.maximum)


@numeric_settings
@given(st.lists(numbers, min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=3), st.randoms())
def test_moments_do_not_depend_on_split_or_order(values, cuts, random):
    whole = Moments.of(torch.tensor(values, dtype=torch.float64))
    random.shuffle(values)
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [torch.tensor(values[a:b], dtype=torch.float64) for a, b in pairwise(bounds)]
    merged = sum((Moments.of(part) for part in parts), Moments.empty())
    assert merged.count == whole.count
    assert merged.mean == pytest.approx(whole.mean, abs=1e-12)
    assert merged.sum_squared_deviations == pytest.approx(whole.sum_squared_deviations, abs=1e-12)
    assert (merged.minimum, merged.maximum) == (whole.minimum, whole.maximum)


@numeric_settings
@given(batches(1))
def test_junk_at_masked_positions_changes_nothing(batch):
    mask, (values,) = batch
    if mask.sum() == 0:
        assert Moments.of(with_junk(values, mask, seed=2), mask).count == 0
    else:
        assert Moments.of(with_junk(values, mask, seed=2), mask) == Moments.of(values, mask)


def test_small_spread_survives_a_large_mean():
    values = 1e6 + 1e-3 * torch.arange(5, dtype=torch.float64)
    halves = Moments.of(values[:2]) + Moments.of(values[2:])
    # Spacing 1e-3: squared deviations 1e-6 (4 + 1 + 0 + 1 + 4).
    assert halves.sum_squared_deviations == pytest.approx(1e-5, rel=1e-6)


def test_explained_variance_by_hand():
    # Returns 0 1 2 3: squares 2.25 + 0.25 + 0.25 + 2.25 = 5. Residuals 0.5 0 0 0.5: 4 x 0.0625 = 0.25.
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    values = torch.tensor([-0.5, 1.0, 2.0, 2.5])
    found = explained_variance(Moments.of(returns), Moments.of(returns - values))
    assert found == pytest.approx(1 - 0.25 / 5)


def test_explained_variance_of_perfect_constant_and_inverted_critics():
    returns = torch.tensor([1.0, 2.0, 4.0])
    of_returns = Moments.of(returns)
    assert explained_variance(of_returns, Moments.of(returns - returns)) == 1.0
    assert explained_variance(of_returns, Moments.of(returns - 7.0)) == pytest.approx(0.0)
    # R - V = 2R has four times the variance.
    assert explained_variance(of_returns, Moments.of(returns + returns)) == pytest.approx(-3.0)


def test_explained_variance_is_undefined_for_equal_returns():
    returns = torch.full((7,), 0.1)
    assert math.isnan(explained_variance(Moments.of(returns), Moments.of(torch.randn(7))))
    assert math.isnan(explained_variance(Moments.empty(), Moments.empty()))


def test_explained_variance_over_two_masks_is_refused():
    with pytest.raises(ValueError, match="3 returns and 2 residuals"):
        explained_variance(Moments.of(torch.ones(3)), Moments.of(torch.ones(2)))


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="equal shapes"):
        Moments.of(torch.ones(2, 2), torch.ones(2))
