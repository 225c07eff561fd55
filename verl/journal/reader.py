"""The reading end of the journal: everything in order, or only what is new.

Reading needs no lock and never changes a file. An unfinished last line is left alone until its
newline is there; a line that is no record is skipped, counted and reported in `problems`.
"""

from __future__ import annotations

import heapq
import os
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from verl.errors import JournalError
from verl.journal.canonical import Supersession
from verl.journal.cursor import Cursor, Position
from verl.journal.records import Kind, Record, Stream, stream_of
from verl.journal.segments import list_segments
from verl.journal.tail import Problem, ProblemLog, Tail

FOLLOW_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric over the steps, each step once, steps rising.

    Attributes:
        steps: int64, shape (n,). values: float64, shape (n,). times: Unix seconds, float64, shape (n,).
    """

    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray


class _Points:
    """Values of one metric as they come, in arrays (24 bytes a point)."""

    def __init__(self) -> None:
        self._steps, self._values, self._times = array("q"), array("d"), array("d")

    def add(self, step: int, value: float, time: float) -> None:
        self._steps.append(step)
        self._values.append(value)
        self._times.append(time)

    def series(self) -> MetricSeries:
        """The points by step; of several at a step the one that came last."""
        steps = np.array(self._steps, dtype=np.int64)
        order = np.argsort(steps, kind="stable")
        is_last = np.append(np.diff(steps[order]) != 0, True)
        chosen = order[is_last]
        return MetricSeries(steps[chosen], np.array(self._values)[chosen], np.array(self._times)[chosen])


class _Next(NamedTuple):
    """Next record of a writer, as an item of the merge over writers."""

    time: float
    writer: str
    record: Record
    tail: Tail


class JournalReader:
    """Reads the journal of a run directory, also while it is being written.

        for record in JournalReader("logs/20260101_120000").records():
            ...

    Args:
        path: The run directory. A run that has not written anything yet is an empty journal.

    Raises:
        JournalError: There is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise JournalError(f"There is no folder {self._path}; give the one that has run.json and journal/ in it.")
        self._journal = self._path / "journal"
        self._problems = ProblemLog()

    @property
    def problems(self) -> list[Problem]:
        """Lines that were skipped so far (each once; the first thousand)."""
        return self._problems.first

    @property
    def num_problems(self) -> int:
        """How many lines were skipped so far."""
        return self._problems.count

    def records(self, kinds: Collection[str] | None = None) -> Iterator[Record]:
        """All records, read as they are asked for (memory holds one record per stream).

        Order: `seq` within a writer (over both streams and all segments); writers are merged by time.

        Args:
            kinds: Only these kinds; a stream that holds none of them is not read.
        """
        tails = self._tails(Cursor(), set(Stream) if kinds is None else {stream_of(kind) for kind in kinds})
        try:
            for record, _ in _merged(tails):
                if kinds is None or record.kind in kinds:
                    yield record
        finally:
            for tail in tails:
                tail.close()

    def follow(self, cursor: Cursor | None = None, *, max_bytes: int = FOLLOW_BYTES) -> tuple[list[Record], Cursor]:
        """Records that came after a cursor, and the cursor for the next call.

        Call it again at once until it returns no records, then from time to time. A record can come
        twice (after a full disk, see `JournalWriter.append_many`), but none is left out.

        Args:
            cursor: Where the last call ended; nothing = the beginning.
            max_bytes: About how much to read in one call (at least one record).
        """
        cursor = cursor if cursor is not None else Cursor()
        tails = self._tails(cursor, set(Stream))
        records: list[Record] = []
        left = max_bytes
        for record, size in _merged(tails):
            records.append(record)
            left -= size
            if left <= 0:
                break
        for tail in tails:
            tail.close()
        return records, Cursor({**cursor.positions, **{tail.stream.name: tail.position for tail in tails}})

    def canonical(self, kinds: Collection[str] | None = None) -> Iterator[Record]:
        """The canonical view: each step once, from its last attempt (see `canonical`).

        Reads the journal twice instead of holding it in memory.
        """
        supersession = Supersession()
        wanted = None if kinds is None else {*kinds, Kind.REWIND.value}
        for record in self.records(wanted):
            supersession.add(record)
        for record in self.records(kinds):
            kept = supersession.kept(record)
            if kept is not None:
                yield kept

    def metrics(self) -> dict[str, MetricSeries]:
        """Every metric of the canonical view. A key logged twice at a step keeps the later value."""
        points: dict[str, _Points] = defaultdict(_Points)
        for record in self.canonical({Kind.METRICS}):
            if record.step is None:
                continue
            for key, value in record.fields["metrics"].items():
                points[key].add(record.step, value, record.t)
        return {key: found.series() for key, found in points.items()}

    def _tails(self, cursor: Cursor, streams: set[Stream]) -> list[Tail]:
        return [
            Tail(self._journal, stream, indices, cursor.positions.get(stream.name, Position()), self._problems)
            for stream, indices in list_segments(self._journal).items()
            if stream.stream in streams
        ]


def _merged(tails: list[Tail]) -> Iterator[tuple[Record, int]]:
    """Records of all writers with the length of their lines; each is consumed when it is yielded."""
    by_writer: dict[str, list[Tail]] = {}
    for tail in tails:
        by_writer.setdefault(tail.stream.writer, []).append(tail)
    for item in heapq.merge(*(_in_order(writer, group) for writer, group in by_writer.items())):
        yield item.record, item.tail.consume()


def _in_order(writer: str, tails: list[Tail]) -> Iterator[_Next]:
    """Records of one writer by `seq`, with a time that never steps back (the merge needs that).

    The caller consumes a record before it asks for the next.
    """
    time, expected = 0.0, -1
    while True:
        for tail in tails:
            if not tail.is_at_end:
                tail.peek()
        first = _first(tails)
        if first is None or first[0].seq != expected:
            _look_at_all(tails)
            first = _first(tails)
            if first is None:
                return
        record, tail = first
        time, expected = max(time, record.t), record.seq + 1
        yield _Next(time, writer, record, tail)


def _look_at_all(tails: list[Tail]) -> None:
    """Looks until the empty streams are known to be empty after the last record was seen in the others.

    What was written before a record that is seen there is visible by then, so a live journal is read
    in order, too.
    """
    found = True
    while found:
        found = False
        for tail in tails:
            if tail.head is None and tail.peek() is not None:
                found = True


def _first(tails: list[Tail]) -> tuple[Record, Tail] | None:
    heads = [(head, tail) for tail in tails if (head := tail.head) is not None]
    return min(heads, key=lambda item: item[0].seq, default=None)
