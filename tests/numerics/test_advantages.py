import math

import plain_reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric_strategies import batches, numbers, numeric_settings, padded, with_junk

from verl.algorithms.advantages import (
    gae,
    grpo,
    has_zero_variance,
    spread_over_tokens,
    terminal_token_rewards,
    whiten,
)
from verl.algorithms.statistics import Moments

NAN = float("nan")
discounts = st.floats(0.0, 1.0, width=64)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def test_gae_across_a_tool_call_by_hand():
    # Steps (junk in between is skipped): r = 0 0 0 1, V = .5 .4 .3 .2, gamma .99, gamma lam .9405.
    #   A4 = 1 - .2                               = .8
    #   A3 = .99 x .2 - .3 + .9405 x .8           = -.102 + .7524       = .6504
    #   A2 = .99 x .3 - .4 + .9405 x .6504        = -.103 + .6117012    = .5087012
    #   A1 = .99 x .4 - .5 + .9405 x .5087012     = -.104 + .4784334786 = .3744334786
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]])
    advantages, returns = gae(row(0, 0, NAN, 5, 0, 1), row(0.5, 0.4, 9, NAN, 0.3, 0.2), mask, 0.99, 0.95)
    expected = row(0.3744334786, 0.5087012, 0, 0, 0.6504, 0.8)
    torch.testing.assert_close(advantages, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(returns, expected + row(0.5, 0.4, 0, 0, 0.3, 0.2), rtol=0, atol=1e-10)


def test_a_truncated_trajectory_ends_with_its_bootstrap_value_or_with_zero():
    rewards, values, mask = row(0, 0, 0).repeat(2, 1), row(0.1, 0.2, 0.3).repeat(2, 1), torch.ones(2, 3)
    # Row 0 was truncated, with value .5 after its last token: A3 = .5 x .5 - .3 = -.05.
    bootstrapped, _ = gae(rewards, values, mask, 0.5, 1.0, bootstrap_B=torch.tensor([0.5, 0.0]))
    assert bootstrapped[:, 2].tolist() == pytest.approx([-0.05, -0.3])
    ended, _ = gae(rewards, values, mask, 0.5, 1.0)
    assert ended[:, 2].tolist() == pytest.approx([-0.3, -0.3])


def test_the_bootstrap_value_reaches_the_last_trainable_token_across_masked_ones():
    advantages, _ = gae(row(0, NAN, NAN), row(0.2, NAN, NAN), torch.tensor([[1, 0, 0]]), 0.9, 0.9, torch.tensor([1.0]))
    assert advantages[0].tolist() == pytest.approx([0.9 - 0.2, 0.0, 0.0])


@numeric_settings
@given(batches(2), discounts, discounts, st.booleans())
def test_gae_agrees_with_the_compressed_reference(batch, gamma, lam, is_truncated):
    mask, (rewards, values) = batch
    bootstrap = torch.linspace(-1, 1, len(mask), dtype=torch.float64) if is_truncated else None
    advantages, returns = gae(with_junk(rewards, mask, 1), with_junk(values, mask, 2), mask, gamma, lam, bootstrap)
    for i, keep in enumerate(mask.tolist()):
        kept_values = plain_reference.kept(values[i].tolist(), keep)
        last_value = float(bootstrap[i]) if bootstrap is not None else 0.0
        expected = plain_reference.gae(
            plain_reference.kept(rewards[i].tolist(), keep), kept_values, gamma, lam, last_value
        )
        assert advantages[i][mask[i] == 1].tolist() == pytest.approx(expected, abs=1e-12)
        expected_returns = [a + v for a, v in zip(expected, kept_values, strict=True)]
        assert returns[i][mask[i] == 1].tolist() == pytest.approx(expected_returns, abs=1e-12)
    assert torch.all(advantages[mask == 0] == 0)
    assert torch.all(returns[mask == 0] == 0)


@numeric_settings
@given(batches(2), st.integers(0, 3), st.integers(0, 3))
def test_gae_does_not_depend_on_padding_or_order(batch, left, right):
    mask, (rewards, values) = batch
    expected, _ = gae(rewards, values, mask, 0.9, 0.8)
    wide = [padded(x, left, right, fill=NAN).flip(0) for x in (rewards, values)]
    found, _ = gae(*wide, padded(mask, left, right).flip(0), 0.9, 0.8)
    assert torch.equal(found.flip(0)[:, left : left + mask.shape[1]], expected)


@numeric_settings
@given(batches(2))
def test_without_discount_the_advantage_is_the_return_minus_the_value(batch):
    mask, (rewards, values) = batch
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    rewards_to_go = (rewards * mask).flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(returns, rewards_to_go * mask, rtol=0, atol=1e-12)
    torch.testing.assert_close(advantages, (rewards_to_go - values) * mask, rtol=0, atol=1e-12)


def test_gae_gives_constants_in_float32_or_wider():
    values = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    advantages, returns = gae(torch.ones(1, 2, dtype=torch.int64), values, torch.ones(1, 2), 1.0, 1.0)
    assert not advantages.requires_grad
    assert not returns.requires_grad
    assert advantages.dtype == torch.float32


def test_the_reward_sits_on_the_last_trainable_token():
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    found = terminal_token_rewards(torch.tensor([2.0, 3.0, NAN, -1.0]), mask)
    expected = torch.zeros(4, 6)
    expected[0, 3], expected[1, 1], expected[3, 5] = 2.0, 3.0, -1.0
    assert torch.equal(found, expected)


def test_every_trainable_token_gets_the_value_of_its_trajectory():
    found = spread_over_tokens(torch.tensor([2.0, NAN]), torch.tensor([[1, 0, 1], [0, 0, 0]]))
    assert found.tolist() == [[2.0, 0.0, 2.0], [0.0, 0.0, 0.0]]


def test_grpo_by_hand():
    # Group 7: 1 2 6, mean 3, deviations -2 -1 3, variance (4 + 1 + 9) / 2 = 7. Group 3: 0 1, mean .5, variance .5.
    rewards, groups = torch.tensor([1.0, 0.0, 2.0, 1.0, 6.0]).double(), torch.tensor([7, 3, 7, 3, 7])
    wide, narrow = math.sqrt(7) + 1e-6, math.sqrt(0.5) + 1e-6
    expected = [-2 / wide, -0.5 / narrow, -1 / wide, 0.5 / narrow, 3 / wide]
    assert grpo(rewards, groups, norm_by_std=True).tolist() == pytest.approx(expected, abs=1e-12)
    assert grpo(rewards, groups, norm_by_std=False).tolist() == pytest.approx([-2, -0.5, -1, 0.5, 3], abs=1e-12)


@pytest.mark.parametrize("norm_by_std", [True, False])
@numeric_settings
@given(data=st.data())
def test_grpo_agrees_with_the_plain_reference_in_any_order(norm_by_std, data):
    rewards = data.draw(st.lists(numbers, min_size=1, max_size=12))
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(rewards), max_size=len(rewards)))
    order = data.draw(st.permutations(range(len(rewards))))
    expected = plain_reference.grpo(rewards, groups, norm_by_std, epsilon=1e-3)
    shuffled = torch.tensor([rewards[i] for i in order], dtype=torch.float64)
    found = grpo(shuffled, torch.tensor([groups[i] for i in order]), norm_by_std, epsilon=1e-3)
    assert found.tolist() == pytest.approx([expected[i] for i in order], abs=1e-10)


@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
@numeric_settings
def test_equal_rewards_and_single_samples_give_exactly_zero(norm_by_std, dtype, reward, size):
    # Their mean is not exact: (0.1 + 0.1 + 0.1) / 3 is not 0.1.
    advantages = grpo(torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64), norm_by_std)
    assert torch.equal(advantages, torch.zeros(size, dtype=dtype))


def test_a_bad_reward_stays_in_its_group():
    advantages = grpo(torch.tensor([NAN, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]), norm_by_std=False)
    assert advantages[:2].isnan().all()
    assert advantages[2:].tolist() == [-0.5, 0.5]


def test_integer_rewards_give_float_advantages():
    assert grpo(torch.tensor([0, 1]), torch.tensor([0, 0]), norm_by_std=False).tolist() == [-0.5, 0.5]


def test_groups_that_teach_nothing_are_found():
    rewards, groups = torch.tensor([0.1, 0.0, 0.1, 1.0, 5.0, 0.1]), torch.tensor([2, 4, 2, 4, 9, 2])
    assert has_zero_variance(rewards, groups).tolist() == [True, False, True]


@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_rewards_and_groups_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="one reward and one group per trajectory"):
        grpo(torch.ones(shape), torch.zeros(2, dtype=torch.int64), norm_by_std=True)


def test_whitening_by_hand():
    # 1 2 6: mean 3, variance 7 (ddof=1).
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
    advantages = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, 6.0]], dtype=torch.float64)
    scale = 1 / math.sqrt(7 + 1e-8)
    expected = [[-2 * scale, 0.0, -1 * scale], [0.0, 0.0, 3 * scale]]
    torch.testing.assert_close(whiten(advantages, mask), torch.tensor(expected, dtype=torch.float64))


@numeric_settings
@given(batches(1))
def test_whitening_a_part_with_the_moments_of_all_equals_whitening_all(batch):
    mask, (advantages,) = batch
    dirty = with_junk(advantages, mask, seed=4)
    whole = whiten(advantages, mask)
    moments = sum((Moments.of(a, m) for a, m in zip(dirty, mask, strict=True)), Moments.empty())
    parts = torch.cat([whiten(dirty[i : i + 1], mask[i : i + 1], moments) for i in range(len(mask))])
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)


@given(value=st.floats(-1e6, 1e6), count=st.integers(0, 6))
@numeric_settings
def test_whitening_equal_advantages_gives_exactly_zero(value, count):
    mask = torch.arange(6).unsqueeze(0) < count
    assert torch.equal(whiten(torch.full((1, 6), value, dtype=torch.float64), mask), torch.zeros(1, 6).double())
