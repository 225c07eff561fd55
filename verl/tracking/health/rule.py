"""What a health rule is, and the few pieces that rules are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from verl.tracking.logger import AlertLevel

RECENT = 20
"""Records that a recent median is taken over."""

_LARGEST = 1.7e308
"""Numbers between minus and plus this are finite; comparing takes whole numbers of any size, too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of a record.

    Attributes:
        numbers: What was found, a sentence with the numbers; empty = healthy.
        is_urgent: So bad that the rule's patience does not count.
        subjects: What it is about, if that can change: something new is an alert of its own.
        is_told_once: However long it goes on, it is not told again.
    """

    numbers: str = ""
    is_urgent: bool = False
    subjects: frozenset[str] = frozenset()
    is_told_once: bool = False


HEALTHY = Finding()


class Symptom:
    """What people are told about, whoever notices it.

    Attributes:
        name: Its group in `trainer.health`.
        title: For people.
        level: Of its alert.
        meaning: What it usually means. advice: What to try.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    level: ClassVar[AlertLevel] = "warning"
    meaning: ClassVar[str]
    advice: ClassVar[str]


class Rule(Symptom, ABC):
    """Judges the metrics of one record after the other.

    A step may be one record or many with a metric each, so a record counts only for the rules whose metrics it has. A
    rule looks at one metric (several rules may share a name), or finds out for itself which of them have recovered.

    Attributes:
        patience: Unhealthy records in a row that make an alert.
    """

    patience: int = 1

    @abstractmethod
    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        """Judge a record; None = it has nothing to judge by, and counts neither as healthy nor as unhealthy."""


def finite(metrics: Mapping[str, float], key: str) -> float | None:
    """The value of `key`, if it is there and finite."""
    value = metrics.get(key)
    return value if value is not None and -_LARGEST < value < _LARGEST else None


def median(values: Iterable[float]) -> float:
    """The middle value, or the upper one of the middle two."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class EarlyMedian:
    """The median of the first values."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values: list[float] = []
        self.value: float | None = None

    def add(self, value: float) -> None:
        if self.value is None:
            self._values.append(value)
            if len(self._values) == self._count:
                self.value = median(self._values)
