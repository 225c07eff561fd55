"""Facts about runs that can be had without reading their journals as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl.journal.cursor import Cursor, Position
from verl.journal.records import Kind, MalformedRecordError, Record, Stream, decode
from verl.journal.segments import StreamId, last_records, list_segments

DEEPEST = 4
"""Folders between the one that is searched and a run in it, at most."""

_BLOCK = 1024 * 1024
_RUN_RECORD = b'"kind":"run"'
_LONGEST_RUN_RECORD = 64 * 1024
_LONGEST_HEAD = 256  # from the start of a line to the mark


@dataclass(frozen=True, slots=True)
class Count:
    """A number of journal lines.

    Attributes:
        lines: The number. is_exact: False if it was estimated from a part.
    """

    lines: int
    is_exact: bool = True

    def __str__(self) -> str:
        return f"{self.lines:,}" if self.is_exact else f"about {self.lines:,}"


def find_runs(folder: Path) -> list[Path]:
    """Run directories at or under a folder, by name; what lies inside a run is not searched.

    Links are followed, but a run that is linked to (`latest`) is found once, by its own name if that is there, too.

    Raises:
        OSError: The folder cannot be read; one that is deeper is passed over.
    """
    return _runs_in(folder, DEEPEST, set())


def count_after(journal: Path, cursor: Cursor, most_bytes: int | None = None) -> Count:
    """How many complete lines of a journal come after a cursor.

    Args:
        journal: Journal folder. cursor: Where to begin.
        most_bytes: Read no more than this, and estimate the rest; nothing = read everything.
    """
    parts = list(_parts_after(journal, cursor))
    size = sum(length for _, _, length in parts)
    left = size if most_bytes is None else min(size, most_bytes)
    lines = read = 0
    for path, offset, length in parts:
        if left <= read:
            break
        wanted = min(length, left - read)
        lines += _newlines(path, offset, wanted)
        read += wanted
    if read == size:
        return Count(lines)
    return Count(max(1, round(lines / read * size)), is_exact=False)


def latest_step(journal: Path) -> int | None:
    """Step of the newest metrics record; nothing if there is none yet."""
    newest: Record | None = None
    for stream, indices in list_segments(journal).items():
        if stream.stream is not Stream.METRICS:
            continue
        for record in _end_of(journal, stream, indices):
            if record.step is not None:
                newest = record if newest is None or record.t > newest.t else newest
                break
    return newest.step if newest else None


def latest_time(journal: Path) -> float | None:
    """When the newest record was written, in Unix seconds; nothing in an empty journal."""
    segments = list_segments(journal).items()
    times = [record.t for stream, indices in segments for record in _end_of(journal, stream, indices)[:1]]
    return max(times, default=None)


def latest_run_record(journal: Path) -> Record | None:
    """The `run` record of the newest attempt that has one: it names project, total steps and trackers."""
    newest: Record | None = None
    for stream, indices in list_segments(journal).items():
        if stream.stream is not Stream.EVENTS:
            continue
        for index in reversed(indices):
            found = _last_run_record(stream.segment(journal, index))
            if found is not None:
                newest = found if newest is None or found.attempt > newest.attempt else newest
                break
    return newest


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder and below it; links are not followed, and what goes meanwhile counts nothing."""
    total = 0
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def _runs_in(folder: Path, deepest: int, seen: set[str]) -> list[Path]:
    real = os.path.realpath(folder)
    if real in seen:
        return []
    seen.add(real)
    if (folder / "run.json").is_file():
        return [folder]
    with os.scandir(folder) as entries:
        # Links come last: what they lead to is to be found by its own name.
        inside = sorted(
            (entry.is_symlink(), entry.name)
            for entry in entries
            if not entry.name.startswith(".") and _is_folder(entry)
        )
    found: list[Path] = []
    for _, name in inside if deepest else ():
        try:
            found += _runs_in(folder / name, deepest - 1, seen)
        except OSError:
            continue
    return sorted(found)


def _parts_after(journal: Path, cursor: Cursor) -> Iterator[tuple[Path, int, int]]:
    """File, offset and length of what comes after a cursor."""
    for stream, indices in list_segments(journal).items():
        segment, offset = cursor.positions.get(stream.name, Position())
        for index in indices:
            path = stream.segment(journal, index)
            start = offset if index == segment else 0
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # deleted meanwhile
                continue
            if index >= segment and size > start:
                yield path, start, size - start


def _newlines(path: Path, offset: int, length: int) -> int:
    count = 0
    with open(path, "rb") as file:
        file.seek(offset)
        while length > 0 and (block := file.read(min(_BLOCK, length))):
            count += block.count(b"\n")
            length -= len(block)
    return count


def _end_of(journal: Path, stream: StreamId, indices: list[int]) -> list[Record]:
    """The last records of a stream, newest first."""
    for index in reversed(indices):
        records = last_records(stream.segment(journal, index))
        if records:
            return records
    return []


def _last_run_record(path: Path) -> Record | None:
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while end > 0:
            start = max(0, end - _BLOCK)
            # A record whose mark is in this block may begin in the one before and end in the one after.
            head = min(start, _LONGEST_HEAD)
            file.seek(start - head)
            block = file.read(head + end - start + _LONGEST_RUN_RECORD)
            found = _run_record_in(block, head + end - start)
            if found is not None:
                return found
            end = start
    return None


def _run_record_in(block: bytes, length: int) -> Record | None:
    """The last `run` record whose mark begins in the first `length` bytes of a block."""
    mark = block.rfind(_RUN_RECORD, 0, length + len(_RUN_RECORD) - 1)
    while mark >= 0:
        begin = block.rfind(b"\n", 0, mark) + 1
        end = block.find(b"\n", mark)
        try:
            record = decode(block[begin : end + 1])
        except MalformedRecordError:
            pass  # a torn line, or one that begins in an earlier block
        else:
            if record.kind == Kind.RUN:
                return record
        mark = block.rfind(_RUN_RECORD, 0, mark)
    return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
