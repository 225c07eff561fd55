"""What a metric is: its key, how its samples become one number, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reduction(StrEnum):
    """How the samples of one metric become one number.

    Every reduction is exact: the result is the same however the samples are split over calls,
    micro-batches and ranks.
    """

    MEAN = "mean"
    """Sum of value x weight, divided by the sum of weights."""
    SUM = "sum"
    """Sum of the values; weights do not scale it."""
    MIN = "min"
    """Smallest value; NaN if any sample is NaN."""
    MAX = "max"
    """Largest value; NaN if any sample is NaN."""
    STD = "std"
    """Population standard deviation (divisor n) of the samples, each counted by its weight."""
    LAST = "last"
    """The newest value; over ranks, that of the last rank which has one."""


class Direction(StrEnum):
    """Which way is better."""

    UP = "up"
    DOWN = "down"
    WATCH = "watch"
    """Neither: to be kept in a range."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Declaration of one metric.

    Example: `MetricSpec("reward/skewness", unit="", description="Skewness of the rewards of a batch.")`.

    Attributes:
        key: Its name, `area/thing`; in the catalogue a part in angle brackets stands for any name.
        reduction: How samples become one number.
        unit: "nats", "tokens", "s", "1/s", "bytes", "fraction", or "" for a plain number.
        direction: Which way is better.
        description: One sentence.
        healthy: What a healthy run shows, in words; "" where there is nothing to say.
        absent_when: Why it may be absent, or always 0.
    """

    key: str
    reduction: Reduction = Reduction.MEAN
    unit: str = ""
    direction: Direction = Direction.WATCH
    description: str = ""
    healthy: str = ""
    absent_when: str = ""
