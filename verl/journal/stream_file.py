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
        is_unsynced: Whether something was written since the last `begin_sync`.
    """

    def __init__(self, journal: Path, stream: StreamId, indices: list[int], rotate_bytes: int) -> None:
        self.torn: list[tuple[Path, int]] = []
        self.last_seq = 0
        self._journal = journal
        self._stream = stream
        self._rotate_bytes = rotate_bytes
        self._full: dict[int, int] = {}
        self.is_unsynced = True  # also what a killed predecessor left behind
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
                self.last_seq = _highest_seq(path)

    def _open(self, index: int) -> tuple[int, int]:
        descriptor = os.open(self._stream.segment(self._journal, index), _OPEN_FLAGS, 0o666)
        return descriptor, os.fstat(descriptor).st_size

    def write(self, lines: bytes) -> None:
        """Appends whole lines with one `write`; if that fails, nothing of them stays.

        Raises:
            JournalError: Disk full, quota, or another failure; the call can be repeated.
        """
        self.make_room(len(lines))
        self.write_here(lines)

    def make_room(self, num_bytes: int) -> None:
        """Begins the next segment if so many bytes do not fit into this one; the full one stays open until synced.

        Raises:
            JournalError: The next segment cannot be made.
        """
        if self._size and self._size + num_bytes > self._rotate_bytes:
            try:
                descriptor, size = self._open(self._index + 1)
            except OSError as error:
                raise journal_error("begin the next journal file", self.path, error) from error
            self._full[self._index] = self._descriptor
            self._index, self._descriptor, self._size = self._index + 1, descriptor, size

    def write_here(self, lines: bytes) -> None:
        """`write` into this segment, whatever its size."""
        written = 0
        self.is_unsynced = True
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

    def begin_sync(self) -> tuple[list[int], list[int]]:
        """Descriptors to `fsync` and then close, and the numbers of full segments among them (for `end_sync`).

        The descriptors are duplicates: they stay valid whatever is appended or closed meanwhile.
        """
        self.is_unsynced = False
        full = dict(self._full)
        return [os.dup(descriptor) for descriptor in (*full.values(), self._descriptor)], list(full)

    def end_sync(self, full: list[int]) -> None:
        """Closes full segments that are on the disk now."""
        for index in full:
            if index in self._full:  # else another thread was faster
                os.close(self._full.pop(index))

    def refresh_last_seq(self) -> int:
        """Highest record number as the newest segment says it."""
        self.last_seq = max(self.last_seq, _highest_seq(self.path))
        return self.last_seq

    def close(self) -> None:
        """Closes the files, without `fsync`."""
        for descriptor in (*self._full.values(), self._descriptor):
            os.close(descriptor)
        self._full.clear()


def _highest_seq(path: Path) -> int:
    return max((record.seq for record in last_records(path)), default=0)
