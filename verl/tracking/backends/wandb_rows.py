"""The rows that a run becomes in W&B: the same ones whenever the journal is read again.

A row is numbered and fingerprinted by the records that it was made from and by nothing else. So the number of rows
that a server has, and the fingerprint of the last of them, say exactly how far it has been fed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.tracking.logger import Moment

MOST_BYTES = 3_500_000
"""Of a row: W&B takes 4.1 MB."""
_MOST_STRETCHES = 2000


@dataclass(slots=True)
class Row:
    """A row that is being filled.

    Attributes:
        attempt: Attempt that its records are from.
        step: Training step; nothing as long as it has only messages, which go with the next step.
        time: Time of its last record, Unix seconds.
        values: What stands in the row itself.
        media: What becomes a file of its own, made when it is needed.
        size: Bytes of `values`, about.
        fingerprint: Of its records.
    """

    attempt: int
    step: int | None = None
    time: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    media: dict[str, Callable[[], Any]] = field(default_factory=dict)
    size: int = 0
    fingerprint: int = 0

    def add_record(self, moment: Moment) -> None:
        """Note that a record became part of it."""
        self.time = moment.time
        self.fingerprint = zlib.crc32(f"{moment.attempt}.{moment.seq};".encode(), self.fingerprint)

    def has_any(self, names: Collection[str]) -> bool:
        """Whether one of these names is taken."""
        return any(name in self.values or name in self.media for name in names)

    def put(self, name: str, value: Any, size: int) -> bool:
        """Put a value in; false if the row would become too large."""
        size += len(name) + 4
        if self.size + size > MOST_BYTES:
            return False
        self.values[name] = value
        self.size += size
        return True

    def add_message(self, name: str, text: str) -> None:
        """Put a message in, after those that it has."""
        known = self.values.get(name)
        self.values[name] = text if known is None else f"{known}\n{text}"
        self.size += len(text) + len(name)


class StepsOfRows:
    """Training step of every row, kept as stretches with an even stride: a few numbers for a usual run.

    Args:
        stretches: As `stretches` of an earlier one.

    Attributes:
        stretches: [first step, stride, rows] each; nothing if there were too many to keep.
    """

    def __init__(self, stretches: list[list[int]] | None) -> None:
        self.stretches = stretches

    def append(self, step: int) -> None:
        """Add a row."""
        if self.stretches is None:
            return
        last = self.stretches[-1] if self.stretches else None
        if last and last[2] == 1:
            last[1], last[2] = step - last[0], 2
        elif last and step == last[0] + last[1] * last[2]:
            last[2] += 1
        elif len(self.stretches) < _MOST_STRETCHES:
            self.stretches.append([step, 0, 1])
        else:
            self.stretches = None

    def __iter__(self) -> Iterator[int]:
        for first, stride, rows in self.stretches or []:
            yield from (first + stride * index for index in range(rows))


@dataclass(slots=True)
class Rows:
    """The rows so far.

    Attributes:
        count: How many. fingerprint: Of all their records.
        native: `_step` of the last one; -1 before the first.
        last_step: Training step of the last one.
        steps: Training steps of all.
    """

    count: int = 0
    fingerprint: int = 0
    native: int = -1
    last_step: int = 0
    steps: StepsOfRows = field(default_factory=lambda: StepsOfRows([]))

    def close(self, row: Row) -> int:
        """Number a row; gives its `_step`, which rises from row to row and is the training step where that can be."""
        step = self.last_step if row.step is None else row.step
        self.native = _next_native(self.native, step)
        self.fingerprint = zlib.crc32(f"{step}:{row.fingerprint}".encode(), self.fingerprint)
        self.last_step = step
        self.steps.append(step)
        self.count += 1
        return self.native

    def before(self, to_step: int) -> tuple[int, int] | None:
        """Number of rows before the first one of a step after `to_step`, and `_step` of the last of them.

        Nothing if that is not known any more.
        """
        if self.steps.stretches is None:
            return None
        count, native = 0, -1
        for step in self.steps:
            if step > to_step:
                break
            count, native = count + 1, _next_native(native, step)
        return count, native

    def to_json(self) -> dict[str, Any]:
        """All of it, for the state of the tracker."""
        return {
            "rows": self.count,
            "fingerprint": self.fingerprint,
            "native": self.native,
            "last_step": self.last_step,
            "steps": self.steps.stretches,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Rows:
        """What `to_json` gave; no rows if there is nothing saved."""
        if not saved:
            return cls()
        stretches = saved["steps"]
        copied = None if stretches is None else [list(stretch) for stretch in stretches]
        return cls(saved["rows"], saved["fingerprint"], saved["native"], saved["last_step"], StepsOfRows(copied))


def _next_native(native: int, step: int) -> int:
    return max(step, native + 1)
