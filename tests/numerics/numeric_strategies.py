"""Random batches for the property tests."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

JUNK = [float("nan"), float("inf"), float("-inf"), 1e30, -7.0, 0.0]

# The first call into torch is slow, so there is no deadline per example.
numeric_settings = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

numbers = st.floats(min_value=-3.0, max_value=3.0, allow_nan=False, width=64)


@st.composite
def masks(draw: st.DrawFn, max_rows: int = 5, max_tokens: int = 7) -> Tensor:
    """Masks of any pattern, empty rows included."""
    rows = draw(st.integers(1, max_rows))
    tokens = draw(st.integers(1, max_tokens))
    bits = draw(st.lists(st.integers(0, 1), min_size=rows * tokens, max_size=rows * tokens))
    return torch.tensor(bits).reshape(rows, tokens)


@st.composite
def batches(draw: st.DrawFn, num_tensors: int) -> tuple[Tensor, list[Tensor]]:
    """A mask, and float64 tensors of its shape."""
    mask_BT = draw(masks())
    size = mask_BT.numel()
    tensors = [
        torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=torch.float64).reshape(mask_BT.shape)
        for _ in range(num_tensors)
    ]
    return mask_BT, tensors


def with_junk(values_BT: Tensor, mask_BT: Tensor, seed: int) -> Tensor:
    """The same values with junk, NaN and infinities among it, at the masked positions."""
    generator = torch.Generator().manual_seed(seed)
    picks_BT = torch.randint(len(JUNK), values_BT.shape, generator=generator)
    return torch.where(mask_BT.bool(), values_BT, torch.tensor(JUNK, dtype=values_BT.dtype)[picks_BT])


def padded(values_BT: Tensor, left: int, right: int, fill: float = 0.0) -> Tensor:
    """The same rows in a wider tensor."""
    return torch.nn.functional.pad(values_BT, (left, right), value=fill)
