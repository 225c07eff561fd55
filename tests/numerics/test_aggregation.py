import plain_reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric_strategies import batches, numeric_settings, padded, with_junk

from verl.algorithms.aggregation import LossDenominator, aggregate, sequence_weights
from verl.errors import ConfigError

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
NAN = float("nan")
LOSS = torch.tensor([[1.0, 2.0, 3.0, NAN], [5.0, NAN, NAN, 9.0], [NAN, NAN, NAN, NAN]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]])
SCALE_LENGTH = 10


def loss_and_gradient(loss, mask, mode, denominator):
    leaf = loss.clone().requires_grad_()
    total = aggregate(leaf, mask, mode, denominator)
    total.backward()
    return total.detach(), leaf.grad


def test_the_denominator_counts_tokens_and_sequences_that_have_any():
    assert LossDenominator.of(MASK, 10) == LossDenominator(num_tokens=5, num_sequences=2, scale_length=10)
    assert LossDenominator.of(MASK[:1]) + LossDenominator.of(MASK[1:]) == LossDenominator.of(MASK)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # Trainable losses: 1 2 3 | 5 9 | nothing (no sequence, so N = 2).
        ("token-mean", (1 + 2 + 3 + 5 + 9) / 5),
        ("seq-mean-token-mean", (6 / 3 + 14 / 2) / 2),
        ("seq-mean-token-sum", (6 + 14) / 2),
        ("seq-mean-token-sum-norm", (6 / 10 + 14 / 10) / 2),
    ],
)
def test_modes_by_hand(mode, expected):
    loss = aggregate(LOSS, MASK, mode, LossDenominator.of(MASK, SCALE_LENGTH))
    assert loss.item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("mode", MODES)
@numeric_settings
@given(batches(1))
def test_modes_agree_with_the_plain_reference(mode, batch):
    mask, (loss,) = batch
    rows = [plain_reference.kept(*row) for row in zip(loss.tolist(), mask.tolist(), strict=True)]
    found = aggregate(loss, mask, mode, LossDenominator.of(mask, SCALE_LENGTH))
    assert found.item() == pytest.approx(plain_reference.aggregate(rows, mode, SCALE_LENGTH), abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@numeric_settings
@given(batches(1), st.integers(1, 5), st.randoms())
def test_micro_batches_add_up_to_the_whole(mode, batch, size, random):
    mask, (loss,) = batch
    denominator = LossDenominator.of(mask, SCALE_LENGTH)
    whole, whole_gradient = loss_and_gradient(loss, mask, mode, denominator)
    order = list(range(len(loss)))
    random.shuffle(order)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    results = [loss_and_gradient(loss[part], mask[part], mode, denominator) for part in parts]
    gradient = torch.zeros_like(loss)
    for part, (_, part_gradient) in zip(parts, results, strict=True):
        gradient[part] = part_gradient
    torch.testing.assert_close(sum(part_loss for part_loss, _ in results), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@numeric_settings
@given(batches(1), st.integers(0, 3), st.integers(0, 3))
def test_junk_padding_and_empty_rows_change_nothing(mode, batch, left, right):
    mask, (loss,) = batch
    whole, whole_gradient = loss_and_gradient(loss, mask, mode, LossDenominator.of(mask, SCALE_LENGTH))
    wide_mask = torch.cat([padded(mask, left, right), torch.zeros(2, mask.shape[1] + left + right, dtype=mask.dtype)])
    wide = torch.cat([padded(loss, left, right), torch.zeros(2, loss.shape[1] + left + right, dtype=loss.dtype)])
    wide = with_junk(wide, wide_mask, seed=3)
    denominator = LossDenominator.of(wide_mask, SCALE_LENGTH)
    found, gradient = loss_and_gradient(wide, wide_mask, mode, denominator)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient[: len(loss), left : left + loss.shape[1]], whole_gradient, rtol=0, atol=1e-12)
    assert torch.all(gradient[wide_mask == 0] == 0)


@numeric_settings
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4), st.integers(0, 1000))
def test_token_mean_equals_sequence_mean_for_equal_lengths(rows, length, masked, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.stack([torch.randperm(length + masked, generator=generator) < length for _ in range(rows)])
    loss = torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    denominator = LossDenominator.of(mask, length)
    results = [aggregate(loss, mask, mode, denominator).item() for mode in MODES]
    assert results[0] == pytest.approx(results[1], abs=1e-12)
    assert results[0] == pytest.approx(results[3], abs=1e-12)
    assert results[0] * length == pytest.approx(results[2], abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_no_trainable_token_gives_zero_and_zero_gradient(mode):
    mask = torch.zeros(2, 3)
    loss, gradient = loss_and_gradient(torch.full((2, 3), NAN), mask, mode, LossDenominator.of(mask, SCALE_LENGTH))
    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros(2, 3))


@pytest.mark.parametrize("mode", MODES)
def test_sequence_weights_are_the_contribution_of_each_token(mode):
    denominator = LossDenominator.of(MASK, SCALE_LENGTH)
    loss, gradient = loss_and_gradient(LOSS, MASK, mode, denominator)
    weights = sequence_weights(MASK, mode, denominator).unsqueeze(1).expand(MASK.shape)
    torch.testing.assert_close(gradient, weights * MASK)
    assert (weights * MASK * LOSS.nan_to_num(0.0)).sum().item() == pytest.approx(loss.item())


def test_the_loss_keeps_its_dtype():
    loss = aggregate(LOSS.float(), MASK, "token-mean", LossDenominator.of(MASK))
    assert loss.dtype == torch.float32


def test_an_unknown_mode_names_the_allowed_ones():
    with pytest.raises(ConfigError, match=r"'mean'.*token-mean, seq-mean-token-mean"):
        aggregate(LOSS, MASK, "mean", LossDenominator.of(MASK))


@pytest.mark.parametrize("scale_length", [None, 0])
def test_the_constant_length_must_be_given(scale_length):
    with pytest.raises(ConfigError, match=r"scale_length.*max_response_length"):
        aggregate(LOSS, MASK, "seq-mean-token-sum-norm", LossDenominator.of(MASK, scale_length))


def test_two_constant_lengths_do_not_add_up():
    with pytest.raises(ValueError, match="got 3 and 4"):
        LossDenominator.of(MASK, 3) + LossDenominator.of(MASK, 4)
