"""Masked reductions in which a masked position influences nothing.

Whatever stands at a masked position (padding, tool output, NaN, infinity) changes neither value nor
gradient: it is replaced by zero *before* any arithmetic. Multiplying by the mask would not do, since
`0 * nan` is `nan`, in the forward and in the backward pass.

Shapes: B trajectories, T response tokens; `_BT` names are examples, any shape works.
"""

from __future__ import annotations

import torch
from torch import Tensor


def boolean_mask(mask_BT: Tensor) -> Tensor:
    """The mask as booleans: True (or any number but 0) = produced by the policy and trainable."""
    return mask_BT if mask_BT.dtype == torch.bool else mask_BT != 0


def zero_masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Values with exact zeros, and no gradient, at masked positions.

    Raises:
        ValueError: Values and mask differ in shape (broadcasting would pair the wrong tokens silently).
    """
    if values_BT.shape != mask_BT.shape:
        raise ValueError(
            f"values have shape {tuple(values_BT.shape)} but the mask has shape {tuple(mask_BT.shape)}; "
            "they must be equal, one mask entry per value"
        )
    return torch.where(boolean_mask(mask_BT), values_BT, torch.zeros_like(values_BT))


def masked_sum(values_BT: Tensor, mask_BT: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the unmasked positions, of all or along `dim`; 0 where there are none."""
    return zero_masked(values_BT, mask_BT).sum(dim=dim)


def masked_mean(values_BT: Tensor, mask_BT: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the unmasked positions, of all or along `dim`; 0 (with zero gradient) where there are none.

    Not for losses over micro-batches: a mean of means depends on the split. See `aggregation.aggregate`.
    """
    count = boolean_mask(mask_BT).sum(dim=dim)
    return masked_sum(values_BT, mask_BT, dim) / count.clamp_min(1)
