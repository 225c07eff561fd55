"""Statistics that merge exactly: the whole from its parts, whatever the split.

`Moments` of micro-batches or ranks add up to the moments of the whole batch (to float64 rounding),
so metrics made of them do not depend on micro-batch size, rank count or order.

Shapes: B trajectories, T response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from verl.algorithms.masking import boolean_mask


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, spread and range of a set of values, in float64.

    Example: `Moments.of(tensor([1.0, 3.0]))` is
    `Moments(count=2, mean=2.0, sum_squared_deviations=2.0, minimum=1.0, maximum=3.0)`;
    `Moments.of(a) + Moments.of(b)` equals `Moments.of(cat([a, b]))` (Chan, Golub and LeVeque 1979:
    unlike sums of squares it does not cancel when the mean is large beside the spread).

    Attributes:
        count: Number of values.
        mean: Their mean; NaN if there are none.
        sum_squared_deviations: Sum of squared deviations from that mean.
        minimum: Smallest value; infinity if there are none.
        maximum: Largest value; minus infinity if there are none.
    """

    count: int
    mean: float
    sum_squared_deviations: float
    minimum: float
    maximum: float

    @classmethod
    def empty(cls) -> Moments:
        """Moments of no values: the neutral element of `+`, to start a sum with."""
        return cls(count=0, mean=math.nan, sum_squared_deviations=0.0, minimum=math.inf, maximum=-math.inf)

    @classmethod
    def of(cls, values_BT: Tensor, mask_BT: Tensor | None = None) -> Moments:
        """Moments of the values, or of the unmasked ones; booleans count as 0 and 1.

        Raises:
            ValueError: Values and mask differ in shape.
        """
        values_BT = values_BT.detach()
        if mask_BT is None:
            selected = values_BT.flatten()
        elif mask_BT.shape == values_BT.shape:
            selected = values_BT[boolean_mask(mask_BT)]
        else:
            raise ValueError(f"values {tuple(values_BT.shape)} and mask {tuple(mask_BT.shape)} must have equal shapes")
        if selected.numel() == 0:
            return cls.empty()
        selected = selected.to(torch.float64)
        # Taken from the smallest value, so that equal values have a deviation of exactly zero.
        minimum = selected.min()
        mean = minimum + (selected - minimum).mean()
        facts = torch.stack([mean, (selected - mean).square().sum(), minimum, selected.max()]).tolist()
        return cls(selected.numel(), *facts)

    def __add__(self, other: Moments) -> Moments:
        if self.count == 0:
            return other
        if other.count == 0:
            return self
        count = self.count + other.count
        difference = other.mean - self.mean
        between = difference * difference * self.count * other.count / count
        return Moments(
            count=count,
            mean=self.mean + difference * other.count / count,
            sum_squared_deviations=self.sum_squared_deviations + other.sum_squared_deviations + between,
            minimum=_nan_or(min, self.minimum, other.minimum),
            maximum=_nan_or(max, self.maximum, other.maximum),
        )

    def variance(self, ddof: int) -> float:
        """Variance with divisor `count - ddof` (1 if that is smaller); NaN if there are no values."""
        return self.sum_squared_deviations / max(self.count - ddof, 1) if self.count else math.nan

    def std(self, ddof: int) -> float:
        """Square root of `variance(ddof)`."""
        return math.sqrt(self.variance(ddof))


def _nan_or(choose: Callable[[float, float], float], left: float, right: float) -> float:
    # Python's min and max keep or drop a NaN by its place, which would make the sum depend on order.
    return math.nan if math.isnan(left) or math.isnan(right) else choose(left, right)


def explained_variance(returns: Moments, residuals: Moments) -> float:
    """Share of the variance of the returns that the critic explains: `1 - Var(R - V) / Var(R)`.

    1 is perfect, 0 as good as a constant, negative worse than one. NaN if the returns do not vary.

    Args:
        returns: Moments of the returns R over the trainable tokens.
        residuals: Moments of R - V over the same tokens.

    Raises:
        ValueError: The two counts differ.
    """
    if returns.count != residuals.count:
        raise ValueError(f"moments of {returns.count} returns and {residuals.count} residuals: take both over one mask")
    if returns.count == 0 or returns.sum_squared_deviations == 0.0:
        return math.nan
    return 1.0 - residuals.sum_squared_deviations / returns.sum_squared_deviations
