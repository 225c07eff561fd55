"""The writing end of one stream: whole lines at the end of its newest segment."""

from __future__ import annotations

import os
from pathlib import Path

from verl.journal.failures import journal_error
from verl.journal.segments import StreamId, cut_torn_tail, last_records

_OPEN_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class StreamFile:
    """Newest segment of a stream, open for appending. Not thread-safe: its writer holds a lock.

    Opening repairs torn tails of all segments.

    Attributes:
        torn: (segment, bytes cut off) of each tail that was repaired.
        last_seq: Highest record number found, 0 in a new stream.
    """

    def __init__(self, journal: Path, stream: StreamId, indices: list[int], rotate_bytes: int) -> None:
        self.torn: list[tuple[Path, int]] = []
        self.last_seq = 0
        self._journal = journal
        self._stream = stream
        self._rotate_bytes = rotate_bytes
        self._retired: list[int] = []
        self._is_unsynced = True  # also what a killed predecessor left behind
        self._index = indices[-1] if indices else 0
        try:
            self._repair(indices)
            self._descriptor, self._size = self._open(self._index)
        except OSError as error:
            raise journal_error("open the journal", self.path, error) from error

    @property
    def path(self) -> Path:
        """The newest segment."""
        return self._stream.segment(self._journal, self._index)

    def _repair(self, indices: list[int]) -> None:
        for index in reversed(indices):
            path = self._stream.segment(self._journal, index)
            cut = cut_torn_tail(path)
            if cut:
                self.torn.append((path, cut))
            if not self.last_seq:
                self.last_seq = max((record.seq for record in last_records(path)), default=0)

    def _open(self, index: int) -> tuple[int, int]:
        descriptor = os.open(self._stream.segment(self._journal, index), _OPEN_FLAGS, 0o666)
        return descriptor, os.fstat(descriptor).st_size

    def write(self, lines: bytes) -> None:
        """Appends whole lines with one `write`; if that fails, nothing of them stays.

        Raises:
            JournalError: Disk full, quota, or another failure; the call can be repeated.
        """
        if self._size and self._size + len(lines) > self._rotate_bytes:
            self._rotate()
        written = 0
        self._is_unsynced = True
        try:
            written = os.write(self._descriptor, lines)
            while written < len(lines):  # the rest fits after all, or its failure tells why
                written += os.write(self._descriptor, lines[written:])
        except OSError as error:
            self.take_back(written)
            raise journal_error("write the journal", self.path, error) from error
        self._size += written

    def take_back(self, num_bytes: int) -> None:
        """Cuts that many bytes off the end."""
        try:
            self._size = os.fstat(self._descriptor).st_size - num_bytes
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise journal_error("take back a partly written line", self.path, error) from error

    def _rotate(self) -> None:
        """Begins the next segment; the full one is synced and closed later, by `take_unsynced`'s caller."""
        try:
            descriptor, size = self._open(self._index + 1)
        except OSError as error:
            raise journal_error("begin the next journal file", self.path, error) from error
        self._retired.append(self._descriptor)
        self._index, self._descriptor, self._size = self._index + 1, descriptor, size

    def take_unsynced(self) -> list[int]:
        """Descriptors to `fsync` and then close; they stay valid whatever is appended meanwhile."""
        if not self._is_unsynced:
            return []
        self._is_unsynced = False
        retired, self._retired = self._retired, []
        return [*retired, os.dup(self._descriptor)]

    def close(self) -> None:
        """Closes the files, without `fsync`."""
        for descriptor in (*self._retired, self._descriptor):
            os.close(descriptor)
        self._retired = []
