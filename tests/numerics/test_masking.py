import pytest
import torch
from hypothesis import given
from numeric_strategies import batches, numeric_settings, with_junk

from verl.algorithms.masking import masked_mean, masked_sum, zero_masked

VALUES = torch.tensor([[1.0, 2.0, 6.0, float("nan")], [float("inf"), 5.0, float("nan"), float("-inf")], [9.0] * 4])
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


def test_sums_and_means_by_hand():
    # Trainable: 1 2 6 | 5 | nothing.
    assert masked_sum(VALUES, MASK).item() == 1 + 2 + 6 + 5
    assert masked_mean(VALUES, MASK).item() == 14 / 4
    assert masked_sum(VALUES, MASK, dim=1).tolist() == [9.0, 5.0, 0.0]
    assert masked_mean(VALUES, MASK, dim=1).tolist() == [3.0, 5.0, 0.0]


@pytest.mark.parametrize("mask_type", [torch.bool, torch.int64, torch.float32])
def test_a_mask_may_be_of_any_type(mask_type):
    assert masked_mean(VALUES, MASK.to(mask_type)).item() == 3.5


@pytest.mark.parametrize("function", [masked_sum, masked_mean])
def test_an_empty_mask_gives_zero_and_zero_gradient(function):
    values = torch.full((2, 3), float("nan"), requires_grad=True)
    result = function(values, torch.zeros(2, 3))
    result.backward()
    assert result.item() == 0.0
    assert torch.equal(values.grad, torch.zeros(2, 3))


@numeric_settings
@given(batches(1))
def test_junk_changes_neither_value_nor_gradient(batch):
    mask, (values,) = batch
    for function in (masked_sum, masked_mean, lambda x, m: zero_masked(x, m).sum()):
        clean = values.clone().requires_grad_()
        dirty = with_junk(values, mask, seed=1).requires_grad_()
        expected, found = function(clean, mask), function(dirty, mask)
        expected.backward()
        found.backward()
        assert torch.equal(found, expected)
        assert torch.equal(dirty.grad, clean.grad)
        assert torch.all(dirty.grad[mask == 0] == 0)


def test_a_mask_of_another_shape_is_refused_and_not_broadcast():
    with pytest.raises(ValueError, match=r"\(2, 2\).*\(2,\)"):
        masked_sum(torch.ones(2, 2), torch.ones(2))
