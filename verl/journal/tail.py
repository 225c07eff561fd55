"""Reading one stream line by line, from a position on, over all its segments, while it grows."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from verl.journal.cursor import Position
from verl.journal.failures import journal_error
from verl.journal.records import MAX_LINE_BYTES, MalformedRecordError, Record, decode
from verl.journal.segments import StreamId, last_newline_before

_MAX_PROBLEMS_KEPT = 1000
_BLOCK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a journal file that is no record.

    Attributes:
        file: Name of the segment. offset: Byte at which it starts. reason: What is wrong.
    """

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.reason}"


class ProblemLog:
    """Problems found while reading, each counted once however often it is read."""

    def __init__(self) -> None:
        self.first: list[Problem] = []
        self._seen: dict[str, int] = {}
        self.count = 0

    def add(self, problem: Problem) -> None:
        # Offsets rise while a file is read, so the highest one tells a new problem from a repeated one.
        if problem.offset <= self._seen.get(problem.file, -1):
            return
        self._seen[problem.file] = problem.offset
        self.count += 1
        if len(self.first) < _MAX_PROBLEMS_KEPT:
            self.first.append(problem)


class Tail:
    """The records of one stream that have not been consumed.

    Args:
        journal: The journal folder.
        stream: The stream, and the numbers of its segments that exist now.
        position: Where to start. problems: Gets the lines that are skipped.
    """

    def __init__(
        self, journal: Path, stream: StreamId, indices: list[int], position: Position, problems: ProblemLog
    ) -> None:
        self.stream = stream
        self._journal = journal
        self._indices = indices
        self._problems = problems
        self._segment, self._offset = position
        self._file: io.BufferedReader | None = None
        self._head: Record | None = None
        self._head_bytes = 0
        self.is_at_end = False

    @property
    def position(self) -> Position:
        """Start of the first line that was not consumed."""
        return Position(self._segment, self._offset)

    @property
    def head(self) -> Record | None:
        """The record that `peek` found and nobody consumed."""
        return self._head

    def peek(self) -> Record | None:
        """The next record, nothing if there is no further complete line now."""
        while self._head is None:
            line = self._read_line()
            if line is None and not self._go_to_next_segment():
                self.is_at_end = True
                return None
            if line is not None:
                self._take(line)
        self.is_at_end = False
        return self._head

    def consume(self) -> int:
        """Moves past the record that `peek` returned; returns the length of its line in bytes."""
        self._offset += self._head_bytes
        self._head = None
        return self._head_bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, line: bytes) -> None:
        try:
            self._head = decode(line)
        except MalformedRecordError as error:
            self._report(str(error))
            self._offset += len(line)
        else:
            self._head_bytes = len(line)

    def _read_line(self) -> bytes | None:
        """Next complete line of the current segment; the offset moves only past what is skipped."""
        file = self._file if self._file is not None else self._open()
        if file is None:
            return None
        line = file.readline(MAX_LINE_BYTES + 1)
        if line.endswith(b"\n"):
            return line
        if len(line) > MAX_LINE_BYTES and self._skip_long_line(file, len(line)):
            return self._read_line()
        file.seek(self._offset)
        return None

    def _skip_long_line(self, file: io.BufferedReader, length: int) -> bool:
        """Skips a line longer than any record; False if its end is not there."""
        while part := file.readline(_BLOCK):
            length += len(part)
            if part.endswith(b"\n"):
                self._report(f"a line of {length} bytes, longer than any record")
                self._offset += length
                return True
        return False

    def _open(self) -> io.BufferedReader | None:
        path = self.stream.segment(self._journal, self._segment)
        try:
            self._file = io.BufferedReader(io.FileIO(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise journal_error("read the journal", path, error) from error
        descriptor = self._file.fileno()
        if self._offset and os.pread(descriptor, 1, self._offset - 1) != b"\n":
            # Lines there were taken back (see `JournalWriter.append_many`): go on at the start of
            # the line that is there now, or at the end.
            self._offset = last_newline_before(descriptor, min(self._offset, os.fstat(descriptor).st_size))
        self._file.seek(self._offset)
        return self._file

    def _go_to_next_segment(self) -> bool:
        """Moves on if a later segment exists and the current one has nothing left."""
        following = self._following_segment()
        if following is None:
            return False
        # The last lines of the current segment may have come between its end and the look at the next.
        line = self._read_line()
        if line is not None:
            self._take(line)
            return True
        if self._file is not None and self._file.read(1):
            self._report("an unfinished line at the end of a full segment")
        self.close()
        self._segment, self._offset = following, 0
        return True

    def _following_segment(self) -> int | None:
        if self.stream.segment(self._journal, self._segment + 1).exists():
            return self._segment + 1
        return min((index for index in self._indices if index > self._segment), default=None)  # others were deleted

    def _report(self, reason: str) -> None:
        name = self.stream.segment(self._journal, self._segment).name
        self._problems.add(Problem(name, self._offset, reason))
