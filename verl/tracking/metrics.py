"""Collect samples of metrics and reduce them exactly, whatever the micro-batches and ranks.

    buffer = MetricBuffer()
    buffer.add("loss/policy_loss", 0.31, weight=128)   # 128 trainable tokens
    buffer.add("loss/policy_loss", 0.27, weight=64)
    buffer.reduce()                                    # {"loss/policy_loss": 0.2966...}; the buffer is empty again

Over ranks: gather every rank's `state()`, `merge` them on rank 0, and `reduce` the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from verl.tracking.catalogue import lookup
from verl.tracking.spec import Direction, MetricSpec, Reduction
from verl.tracking.values import as_float

__all__ = ["Direction", "MetricBuffer", "MetricSpec", "MetricState", "Reduction", "merge"]

MetricState = dict[str, dict[str, Any]]
"""Plain, JSON-able state of a buffer: per key its reduction, count and partial sums."""


class _ExactSum:
    """A sum without rounding error: a list of floats that do not overlap (Shewchuk 1997, `math.fsum`).

    Unlike a running `math.fsum` it can be merged, so the order and the split of the terms cannot show.
    """

    __slots__ = ("partials", "special")

    def __init__(self, partials: Iterable[float] = (), special: float = 0.0) -> None:
        self.partials = list(partials)
        self.special = special  # sum of the NaN and infinite terms, kept apart: they would destroy the partials

    def add(self, term: float) -> None:
        if not math.isfinite(term):
            self.special += term
            return
        kept = 0
        partials = self.partials
        for partial in partials:
            if abs(term) < abs(partial):
                term, partial = partial, term
            high = term + partial
            low = partial - (high - term)
            if low:
                partials[kept] = low
                kept += 1
            term = high
        partials[kept:] = [term]
        if not math.isfinite(term):  # the sum itself is beyond 1.8e308
            partials.clear()
            self.special += term

    def add_all(self, other: _ExactSum) -> None:
        for partial in other.partials:
            self.add(partial)
        self.special += other.special

    def add_exactly(self, term: Fraction) -> None:
        """Add a number that may be no float: as floats that sum to it."""
        try:
            while part := float(term):
                self.add(part)
                term -= Fraction(part)
        except OverflowError:
            self.special += math.inf if term > 0 else -math.inf

    @property
    def value(self) -> float:
        return math.fsum(self.partials) + self.special

    @property
    def exact_value(self) -> Fraction:
        """The sum of the finite terms without any rounding."""
        return sum(map(Fraction, self.partials), Fraction())


class _Samples:
    """The samples of one key, reduced as they come."""

    __slots__ = ("count", "extreme", "reduction", "squares", "total", "weight")

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.count = 0
        self.total = _ExactSum()
        self.weight = _ExactSum()
        self.squares = _ExactSum()
        self.extreme = math.nan  # smallest, largest or newest value

    def add(self, value: float, weight: float) -> None:
        if weight == 0:  # a fully masked micro-batch: its value, often 0/0, means nothing
            return
        if self.reduction is Reduction.MEAN:
            self.total.add(value * weight)
            self.weight.add(weight)
        elif self.reduction is Reduction.SUM:
            self.total.add(value)
        elif self.reduction is Reduction.STD:
            self.add_moments(weight, value, 0.0)
            return
        else:
            self._take(value)
        self.count += 1

    def add_moments(self, count: float, mean: float, sum_squared_deviations: float) -> None:
        """Sums of the values and of their squares, both without rounding: then nothing cancels between them."""
        if math.isfinite(mean) and math.isfinite(sum_squared_deviations):
            total = Fraction(count) * Fraction(mean)
            self.total.add_exactly(total)
            self.squares.add_exactly(total * Fraction(mean) + Fraction(sum_squared_deviations))
        else:
            self.total.add(math.nan)
        self.weight.add(count)
        self.count += 1

    def _take(self, value: float) -> None:
        if self.count == 0 or self.reduction is Reduction.LAST:
            self.extreme = value
        elif math.isnan(value) or math.isnan(self.extreme):
            self.extreme = math.nan
        else:
            self.extreme = (min if self.reduction is Reduction.MIN else max)(self.extreme, value)

    def absorb(self, other: _Samples) -> None:
        if other.count == 0:
            return
        self.total.add_all(other.total)
        self.weight.add_all(other.weight)
        self.squares.add_all(other.squares)
        if self.reduction not in (Reduction.MEAN, Reduction.SUM, Reduction.STD):
            self._take(other.extreme)
        self.count += other.count

    @property
    def value(self) -> float:
        if self.reduction is Reduction.SUM:
            return self.total.value
        if self.reduction is Reduction.STD:
            return self._deviation()
        if self.reduction is not Reduction.MEAN:
            return self.extreme
        return self.total.value / self.weight.value if self.count else math.nan

    def _deviation(self) -> float:
        if self.count == 0 or self.total.special or self.squares.special:  # none, or an infinite one among them
            return math.nan
        weight = self.weight.exact_value
        mean = self.total.exact_value / weight
        return math.sqrt(max(Fraction(), self.squares.exact_value / weight - mean * mean))

    def state(self) -> dict[str, Any]:
        return {
            "reduction": str(self.reduction),
            "count": self.count,
            "total": [*self.total.partials],
            "total_special": self.total.special,
            "weight": [*self.weight.partials],
            "weight_special": self.weight.special,
            "squares": [*self.squares.partials],
            "squares_special": self.squares.special,
            "extreme": self.extreme,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Samples:
        samples = cls(Reduction(state["reduction"]))
        samples.count = state["count"]
        samples.total = _ExactSum(state["total"], state["total_special"])
        samples.weight = _ExactSum(state["weight"], state["weight_special"])
        samples.squares = _ExactSum(state["squares"], state["squares_special"])
        samples.extreme = state["extreme"]
        return samples


class MetricBuffer:
    """Samples of many metrics between two logged steps.

    Built-in keys are reduced as the catalogue says, a user's own keys as declared, else as a mean.

    Args:
        find_spec: Where built-in declarations come from; nothing found means a mean.
    """

    def __init__(self, find_spec: Callable[[str], MetricSpec | None] = lookup) -> None:
        self._find_spec = find_spec
        self._declared: dict[str, MetricSpec] = {}
        self._samples: dict[str, _Samples] = {}

    def declare(self, spec: MetricSpec) -> None:
        """Say how a metric of your own is reduced, before its first sample.

        Raises:
            ValueError: Samples were already added under another reduction, or the key is a built-in one
                with another reduction.
        """
        samples = self._samples.get(spec.key)
        built_in = self._find_spec(spec.key)
        current = samples.reduction if samples else built_in.reduction if built_in else spec.reduction
        if current is not spec.reduction:
            raise ValueError(
                f"metric {spec.key!r} is already reduced as {current}, it cannot become {spec.reduction}; "
                "declare it before its first sample, or choose another key"
            )
        self._declared[spec.key] = spec

    def reduction_of(self, key: str) -> Reduction:
        """How samples of `key` are reduced."""
        spec = self._declared.get(key) or self._find_spec(key)
        return spec.reduction if spec else Reduction.MEAN

    def add(self, key: str, value: object, weight: float = 1.0) -> None:
        """Add one sample.

        Args:
            key: Metric key.
            value: A number, or a numpy or torch value with one element; NaN and infinities are kept.
            weight: How much it counts in a mean: the number of tokens, trajectories, ... that `value` is the
                mean of; for a standard deviation, how often `value` occurred (`add_moments` for a mean of different
                values). Other reductions ignore it, but a sample with weight 0 never counts.

        Raises:
            TypeError: The key is not text, or the value is not a number.
            ValueError: The weight is negative or not finite.
        """
        number = value if type(value) is float else as_float(key, value)
        samples = self._samples.get(key) or self._new_samples(key)
        if weight != 1.0:
            weight = as_float(key, weight)
            if not 0 <= weight < math.inf:
                raise ValueError(f"metric {key!r} got the weight {weight}; a weight is 0 or a positive number")
        samples.add(number, weight)

    def add_moments(self, key: str, count: float, mean: object, sum_squared_deviations: object) -> None:
        """Add many values at once to a standard deviation, by their moments.

        However the values are split over calls, steps and ranks, the result is that of all of them together (to the
        rounding of the moments given): deviations between the parts count as those within them.

        Example: `add_moments("advantage/std", m.count, m.mean, m.sum_squared_deviations)` of `Moments`.

        Args:
            key: Metric with the reduction `std`.
            count: Number of values; with 0 nothing is added.
            mean: Their mean.
            sum_squared_deviations: Sum of squared deviations from that mean.

        Raises:
            TypeError: The key is not text, or one of the others is not a number.
            ValueError: The metric has another reduction, or the count or the deviations are negative.
        """
        samples = self._samples.get(key) or self._new_samples(key)
        if samples.reduction is not Reduction.STD:
            raise ValueError(f"metric {key!r} is reduced as {samples.reduction}; only std takes moments")
        count, deviations = as_float(key, count), as_float(key, sum_squared_deviations)
        if not 0 <= count < math.inf or deviations < 0:
            raise ValueError(
                f"metric {key!r} got the count {count} and the deviations {deviations}; neither is negative"
            )
        if count:
            samples.add_moments(count, as_float(key, mean), deviations)

    def add_many(self, values: Mapping[str, object], weight: float = 1.0) -> None:
        """Add one sample to each of several metrics, all with the same weight; see `add`."""
        for key, value in values.items():
            self.add(key, value, weight)

    def _new_samples(self, key: str) -> _Samples:
        if not isinstance(key, str) or not key:
            raise TypeError(f"a metric key is a non-empty text, not {key!r}")
        samples = self._samples[key] = _Samples(self.reduction_of(key))
        return samples

    def __len__(self) -> int:
        return len(self._samples)

    def reduce(self) -> dict[str, float]:
        """Reduce every metric to one number and empty the buffer (declarations stay).

        A mean, deviation, minimum, maximum or last value of samples that all had weight 0 is NaN: there is none.
        """
        values = {key: samples.value for key, samples in self._samples.items()}
        self._samples.clear()
        return values

    def state(self) -> MetricState:
        """What other ranks, or a checkpoint, need to continue exactly; plain and JSON-able."""
        return {key: samples.state() for key, samples in self._samples.items()}

    state_dict = state

    def load_state_dict(self, state: MetricState) -> None:
        """Replace the samples by those of `state`."""
        self._samples = {key: _Samples.from_state(value) for key, value in state.items()}

    def absorb(self, state: MetricState) -> None:
        """Add the samples of another buffer to this one.

        Raises:
            ValueError: The two reduce a key differently.
        """
        for key, value in state.items():
            other = _Samples.from_state(value)
            mine = self._samples.get(key)
            if mine is None:
                self._samples[key] = other
            elif mine.reduction is not other.reduction:
                raise ValueError(
                    f"metric {key!r} is reduced as {mine.reduction} on one rank and as {other.reduction} on another; "
                    "declare it alike on all ranks"
                )
            else:
                mine.absorb(other)


def merge(states: Iterable[MetricState]) -> MetricBuffer:
    """Join the states of several ranks, in rank order, into one new buffer.

    Example: `merge(gathered_states).reduce()` on rank 0.

    Raises:
        ValueError: Two ranks reduce a key differently.
    """
    buffer = MetricBuffer()
    for state in states:
        buffer.absorb(state)
    return buffer
