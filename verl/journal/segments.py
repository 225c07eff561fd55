"""Segment files of a journal: their names, their order, and their ends.

    metrics-rank0.jsonl       first segment of the metrics stream of writer rank0
    metrics-rank0.1.jsonl     second: a full segment is never renamed, the next number is begun
    metrics-rank0.jsonl.torn  bytes of a torn last line, kept when it was cut off

Order is by number; the numbers of a stream have no gaps unless someone deleted a segment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl.journal.files import sync_descriptor
from verl.journal.records import MAX_LINE_BYTES, MalformedRecordError, Record, Stream, decode

_WRITER_NAME = r"[A-Za-z0-9_-]+"
_SEGMENT_NAME = re.compile(rf"({Stream.METRICS}|{Stream.EVENTS})-({_WRITER_NAME})(?:\.([1-9]\d*))?\.jsonl")
_BLOCK = 64 * 1024
_NUM_LAST_RECORDS = 8


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """One stream of one writer, such as (rank0, metrics)."""

    writer: str
    stream: Stream

    @property
    def name(self) -> str:
        """Stem of its files: `metrics-rank0`."""
        return f"{self.stream}-{self.writer}"

    def segment(self, journal: Path, index: int) -> Path:
        """Path of one of its segments."""
        return journal / (f"{self.name}.{index}.jsonl" if index else f"{self.name}.jsonl")


def is_writer_name(name: str) -> bool:
    """Whether a writer may be called so: letters, digits, `_` and `-`."""
    return re.fullmatch(_WRITER_NAME, name) is not None


def list_segments(journal: Path) -> dict[StreamId, list[int]]:
    """Segment numbers of every stream in a journal folder, in order; empty if there is no folder."""
    found: dict[StreamId, list[int]] = {}
    try:
        names = os.listdir(journal)
    except FileNotFoundError:
        return {}
    for name in names:
        match = _SEGMENT_NAME.fullmatch(name)
        if match:
            found.setdefault(StreamId(match[2], Stream(match[1])), []).append(int(match[3] or 0))
    return {stream: sorted(found[stream]) for stream in sorted(found)}


def last_newline_before(descriptor: int, end: int) -> int:
    """Offset just after the last newline in the first `end` bytes of a file; 0 if there is none."""
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def cut_torn_tail(path: Path) -> int:
    """Cuts an unfinished last line off a segment and keeps its bytes in `<segment>.torn`.

    Returns:
        Number of bytes cut off.

    Raises:
        OSError: The file cannot be read or written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        end = last_newline_before(descriptor, size)
        if end == size:
            return 0
        with open(f"{path}.torn", "ab") as torn:
            for start in range(end, size, _BLOCK):
                torn.write(os.pread(descriptor, min(_BLOCK, size - start), start))
            torn.write(b"\n")
            torn.flush()
            sync_descriptor(torn.fileno())
        os.ftruncate(descriptor, end)
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
    return size - end


def last_records(path: Path) -> list[Record]:
    """The last few readable records of a segment, newest first; garbage lines are passed over."""
    found: list[Record] = []
    with open(path, "rb") as file:
        for line in _lines_backwards(file.fileno()):
            try:
                found.append(decode(line))
            except MalformedRecordError:
                continue
            if len(found) == _NUM_LAST_RECORDS:
                break
    return found


def last_attempt(journal: Path) -> int:
    """Highest attempt that the ends of the streams name; 0 in an empty journal."""
    highest = 0
    for stream, indices in list_segments(journal).items():
        for index in reversed(indices):
            records = last_records(stream.segment(journal, index))
            if records:
                highest = max(highest, *(record.attempt for record in records))
                break
    return highest


def _lines_backwards(descriptor: int) -> Iterator[bytes]:
    """Complete lines of a file from the last to the first, without newline; empty ones are left out."""
    end = last_newline_before(descriptor, os.fstat(descriptor).st_size)
    block, carried = _BLOCK, b""
    while end > 0:
        start = max(0, end - block)
        carried, *lines = (os.pread(descriptor, end - start, start) + carried).split(b"\n")
        yield from (line for line in reversed(lines) if line)
        if len(carried) > MAX_LINE_BYTES:
            carried = b""  # longer than any record: what is left of it will be no record either
        block, end = block if lines else 2 * block, start
    yield carried
