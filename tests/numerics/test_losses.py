import math

import plain_reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric_strategies import batches, masks, numeric_settings, padded, with_junk

from verl.algorithms.advantages import grpo, spread_over_tokens
from verl.algorithms.aggregation import LossDenominator, aggregate
from verl.algorithms.losses import entropy_from_logits, ppo_policy_loss, value_loss
from verl.algorithms.statistics import Moments

NAN = float("nan")
CLIPS = {"clip_low": 0.2, "clip_high": 0.3}
clips = st.sampled_from([None, 1.5, 3.0])


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def ppo_gradient(logprobs, old_logprobs, advantages, mask, denominator=None, clip_c=None):
    leaf = logprobs.clone().requires_grad_()
    loss = ppo_policy_loss(leaf, old_logprobs, advantages, mask, **CLIPS, clip_c=clip_c)
    total = aggregate(loss.per_token_BT, mask, "token-mean", denominator or LossDenominator.of(mask))
    total.backward()
    return total.detach(), leaf.grad


def test_ppo_by_hand():
    # Clip range .8 to 1.3. Ratio, advantage -> -min(r A, clip(r) A):
    #   2.0,  1 -> -1.3 (clipped)     0.5,  1 -> -0.5
    #   2.0, -1 ->  2.0               0.5, -1 ->  0.8 (clipped)     1.1, 2 -> -2.2
    ratio = row(2.0, 0.5, 2.0, 0.5, 1.1)
    loss = ppo_policy_loss(ratio.log(), torch.zeros(1, 5), row(1, 1, -1, -1, 2), torch.ones(1, 5), **CLIPS)
    torch.testing.assert_close(loss.per_token_BT, row(-1.3, -0.5, 2.0, 0.8, -2.2))
    torch.testing.assert_close(loss.ratio_BT, ratio)
    assert loss.is_clipped_BT.tolist() == [[True, False, False, True, False]]
    assert not loss.is_clipped_lower_BT.any()
    # r - 1 - ln r
    assert loss.approx_kl_BT[0, 0].item() == pytest.approx(1 - math.log(2))
    assert loss.approx_kl_BT[0, 1].item() == pytest.approx(-0.5 + math.log(2))


def test_dual_clip_by_hand():
    # c = 3. Ratio 5, A -1: loss 5 is bound to 3. Ratio 2, A -1: 2 stays. A +1 is never bound.
    ratio = row(5.0, 2.0, 5.0)
    leaf = ratio.log().requires_grad_()
    loss = ppo_policy_loss(leaf, torch.zeros(1, 3), row(-1, -1, 1), torch.ones(1, 3), **CLIPS, clip_c=3.0)
    torch.testing.assert_close(loss.per_token_BT, row(3.0, 2.0, -1.3))
    assert loss.is_clipped_lower_BT.tolist() == [[True, False, False]]
    loss.per_token_BT.sum().backward()
    torch.testing.assert_close(leaf.grad, row(0.0, 2.0, 0.0))


def test_clipped_tokens_have_no_gradient_and_others_have_theirs():
    # d(-r A)/d logprob = -r A.
    _, gradient = ppo_gradient(row(2.0, 0.5, 2.0, 0.5).log(), torch.zeros(1, 4), row(1, 1, -1, -1), torch.ones(1, 4))
    torch.testing.assert_close(gradient, row(0.0, -0.5, 2.0, 0.0) / 4)


@numeric_settings
@given(batches(3), clips)
def test_ppo_agrees_with_the_plain_reference(batch, clip_c):
    mask, (logprobs, old_logprobs, advantages) = batch
    loss = ppo_policy_loss(logprobs, old_logprobs, advantages, mask, **CLIPS, clip_c=clip_c).per_token_BT
    for i, t in mask.nonzero().tolist():
        ell = float(logprobs[i, t] - old_logprobs[i, t])
        expected = plain_reference.ppo(ell, float(advantages[i, t]), 0.2, 0.3, clip_c)
        assert loss[i, t].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert torch.all(loss[mask == 0] == 0)


@numeric_settings
@given(batches(3), clips)
def test_junk_at_masked_positions_changes_no_policy_loss_gradient_or_statistic(batch, clip_c):
    mask, tensors = batch
    dirty = [with_junk(tensor, mask, seed) for seed, tensor in enumerate(tensors)]
    clean_loss, clean_gradient = ppo_gradient(*tensors, mask, clip_c=clip_c)
    loss, gradient = ppo_gradient(*dirty, mask, clip_c=clip_c)
    assert torch.equal(loss, clean_loss)
    assert torch.equal(gradient, clean_gradient)
    clean, found = (ppo_policy_loss(*inputs, mask, **CLIPS, clip_c=clip_c) for inputs in (tensors, dirty))
    for name in ("per_token_BT", "ratio_BT", "is_clipped_BT", "is_clipped_lower_BT", "approx_kl_BT"):
        assert torch.equal(getattr(found, name), getattr(clean, name)), name


@numeric_settings
@given(batches(3), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_policy_loss_gradient_and_statistics_do_not_depend_on_micro_batches_or_padding(batch, size, left, right):
    mask, tensors = batch
    denominator = LossDenominator.of(mask)
    whole, whole_gradient = ppo_gradient(*tensors, mask)
    total, gradients, statistics = torch.zeros((), dtype=torch.float64), [], []
    for start in range(0, len(mask), size):
        part = [padded(tensor[start : start + size], left, right, fill=NAN) for tensor in tensors]
        part_mask = padded(mask[start : start + size], left, right)
        loss, gradient = ppo_gradient(*part, part_mask, denominator)
        total += loss
        gradients.append(gradient[:, left : left + mask.shape[1]])
        statistics.append(ppo_policy_loss(*part, part_mask, **CLIPS).statistics())
    torch.testing.assert_close(total, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat(gradients), whole_gradient, rtol=0, atol=1e-12)
    expected = ppo_policy_loss(*tensors, mask, **CLIPS).statistics()
    merged = statistics[0]
    for part_statistics in statistics[1:]:
        merged = merged + part_statistics
    assert merged.ratio.count == expected.ratio.count == int(mask.sum())
    if expected.ratio.count:
        for name in ("ratio", "approx_kl", "clipped", "clipped_lower"):
            assert getattr(merged, name).mean == pytest.approx(getattr(expected, name).mean, abs=1e-12)
        assert merged.ratio.maximum == expected.ratio.maximum
        assert merged.ratio.minimum == expected.ratio.minimum


@numeric_settings
@given(batches(2))
def test_at_ratio_one_the_gradient_is_that_of_reinforce(batch):
    mask, (logprobs, advantages) = batch
    _, gradient = ppo_gradient(logprobs, logprobs, advantages, mask, clip_c=3.0)
    leaf = logprobs.clone().requires_grad_()
    (-(advantages * leaf * mask).sum() / mask.sum().clamp_min(1)).backward()
    torch.testing.assert_close(gradient, leaf.grad, rtol=0, atol=1e-15)


def test_a_ratio_to_itself_still_has_the_gradient():
    # As old log-probs are constants, passing the live ones is on-policy PPO and not a zero gradient.
    leaf = row(-1.0, -2.0).requires_grad_()
    ppo_policy_loss(leaf, leaf, row(3, 4), torch.ones(1, 2), **CLIPS).per_token_BT.sum().backward()
    torch.testing.assert_close(leaf.grad, row(-3, -4))


def test_equal_rewards_give_exactly_zero_gradient():
    advantages = grpo(torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int64), norm_by_std=True)
    mask = torch.ones(3, 4)
    generator = torch.Generator().manual_seed(0)
    logprobs, old = torch.randn(2, 3, 4, generator=generator)
    loss, gradient = ppo_gradient(logprobs, old, spread_over_tokens(advantages, mask), mask)
    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros(3, 4))


def test_a_huge_log_ratio_is_clamped_to_a_finite_ratio_without_gradient():
    leaf = torch.tensor([[300.0, -300.0]], requires_grad=True)
    loss = ppo_policy_loss(leaf, torch.zeros(1, 2), torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2), **CLIPS)
    assert loss.ratio_BT[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)], rel=1e-6)
    loss.per_token_BT.sum().backward()
    assert leaf.grad.tolist() == [[0.0, 0.0]]


def test_a_nan_at_a_trainable_token_is_not_hidden():
    loss = ppo_policy_loss(row(NAN, 0), row(0, 0), row(1, 1), torch.ones(1, 2), **CLIPS)
    assert loss.per_token_BT.isnan().tolist() == [[True, False]]
    assert math.isnan(loss.statistics().ratio.mean)


def test_statistics_are_over_the_trainable_tokens():
    # Ratios 2 and .5 of which the first is clipped; the third is masked.
    mask = torch.tensor([[1, 1, 0]])
    statistics = ppo_policy_loss(row(2, 0.5, 9).log(), row(0, 0, 0), row(1, 1, 1), mask, **CLIPS).statistics()
    assert statistics.ratio.mean == pytest.approx(1.25)
    assert statistics.clipped == Moments(2, 0.5, 0.5, 0.0, 1.0)
    assert statistics.clipped_lower.mean == 0.0
    assert statistics.approx_kl.mean == pytest.approx((1 - math.log(2) - 0.5 + math.log(2)) / 2)


def test_value_loss_by_hand():
    # Old value 0, clip .5. V, R -> 1/2 max((V - R)^2, (clip(V) - R)^2):
    #   2, 1 -> max(1, .25) / 2 = .5      2, 3 -> max(1, 6.25) / 2 = 3.125 (clipped)      .1, 1 -> .81 / 2
    leaf = row(2.0, 2.0, 0.1).requires_grad_()
    loss = value_loss(leaf, row(0, 0, 0), row(1, 3, 1), torch.ones(1, 3), clip=0.5)
    torch.testing.assert_close(loss.per_token_BT, row(0.5, 3.125, 0.405))
    assert loss.is_clipped_BT.tolist() == [[False, True, False]]
    loss.per_token_BT.sum().backward()
    # V - R, and nothing where clipped.
    torch.testing.assert_close(leaf.grad, row(1.0, 0.0, -0.9))


@pytest.mark.parametrize("clip", [None, 0.5])
@numeric_settings
@given(batches(3))
def test_value_loss_agrees_with_the_plain_reference_whatever_is_masked(clip, batch):
    mask, tensors = batch
    gradients = []
    for inputs in (tensors, [with_junk(tensor, mask, seed) for seed, tensor in enumerate(tensors)]):
        leaf = inputs[0].clone().requires_grad_()
        loss = value_loss(leaf, inputs[1], inputs[2], mask, clip)
        for i, t in mask.nonzero().tolist():
            expected = plain_reference.value(*(float(tensor[i, t]) for tensor in tensors), clip)
            assert loss.per_token_BT[i, t].item() == pytest.approx(expected, abs=1e-12)
        assert torch.all(loss.per_token_BT[mask == 0] == 0)
        assert not loss.is_clipped_BT[mask == 0].any()
        loss.per_token_BT.sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_values_within_the_clip_range_are_never_counted_as_clipped():
    # old + (new - old) often differs from new by a rounding error, which is no clip.
    old, new, distance = 0.4 * torch.rand(3, 1, 1000, generator=torch.Generator().manual_seed(0))
    loss = value_loss(new, old, new + 0.1 * distance, torch.ones(1, 1000), clip=0.5)
    assert not loss.is_clipped_BT.any()


def test_entropy_by_hand():
    # Uniform over 4: ln 4. Probabilities 1/2 1/4 1/4: 1/2 ln 2 + 2 x 1/4 ln 4 = 1.5 ln 2.
    assert entropy_from_logits(torch.full((1, 1, 4), 7.0)).item() == pytest.approx(math.log(4))
    logits = torch.tensor([[[0.5, 0.25, 0.25, 0.0]]], dtype=torch.float64).log()
    assert entropy_from_logits(logits).item() == pytest.approx(1.5 * math.log(2))


def test_a_forbidden_token_does_not_spoil_the_gradient_of_the_entropy():
    leaf = torch.tensor([0.3, -0.2, -math.inf], dtype=torch.float64, requires_grad=True)
    entropy_from_logits(leaf).backward()
    without = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    entropy_from_logits(without).backward()
    torch.testing.assert_close(leaf.grad, torch.cat([without.grad, torch.zeros(1)]))


@numeric_settings
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6))
def test_entropy_agrees_with_the_plain_reference(logits):
    probabilities = plain_reference.softmax(logits)
    expected = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    assert entropy_from_logits(torch.tensor(logits, dtype=torch.float64)).item() == pytest.approx(expected, abs=1e-12)


@numeric_settings
@given(masks())
def test_entropy_of_masked_positions_is_zero_without_gradient(mask):
    logits = torch.randn(*mask.shape, 3, generator=torch.Generator().manual_seed(0))
    leaf = torch.where(mask.bool().unsqueeze(-1), logits, NAN).requires_grad_()
    entropy = entropy_from_logits(leaf, mask)
    entropy.sum().backward()
    assert torch.all(entropy[mask == 0] == 0)
    assert torch.all(leaf.grad[mask == 0] == 0)
    torch.testing.assert_close(entropy[mask == 1], entropy_from_logits(logits)[mask == 1])
