"""The writing end of one stream: whole lines at the end of its newest segment."""

from __future__ import annotations

import os
from pathlib import Path

from verl.journal.failures import journal_error
from verl.journal.files import sync_folder
from verl.journal.segments import StreamId, cut_torn_tail, last_seq

_OPEN_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class StreamFile:
    """Newest segment of a stream, open for appending. Not thread-safe: its writer holds a lock.

    Opening repairs torn tails of all segments.

    Attributes:
        torn: (segment, bytes cut off) of each tail that was repaired.
        last_seq: Highest record number found, 0 in a new stream.
        is_dirty: Whether something was written since the last `fsync`.
    """

    def __init__(self, journal: Path, stream: StreamId, indices: list[int], rotate_bytes: int) -> None:
        self.torn: list[tuple[Path, int]] = []
        self.last_seq = 0
        self.is_dirty = True  # the folder entry of a new file, and what a killed predecessor left unsynced
        self._journal = journal
        self._stream = stream
        self._rotate_bytes = rotate_bytes
        self._retired: list[int] = []
        self._index = indices[-1] if indices else 0
        try:
            self._repair(indices)
            self._open()
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
                self.last_seq = last_seq(path) or 0

    def _open(self) -> None:
        self.descriptor = os.open(self.path, _OPEN_FLAGS, 0o666)
        self.size = os.fstat(self.descriptor).st_size

    def write(self, lines: bytes) -> None:
        """Appends whole lines with one `write`; on failure nothing of them stays.

        Raises:
            JournalError: Disk full, quota, or another failure; the call can be repeated.
        """
        if self.size and self.size + len(lines) > self._rotate_bytes:
            self._rotate()
        try:
            written = os.write(self.descriptor, lines)
            while written < len(lines):  # a part was written: the rest names the reason, or fits after all
                written += os.write(self.descriptor, lines[written:])
        except OSError as error:
            self.take_back(self.size)
            raise journal_error("write the journal", self.path, error) from error
        self.size += written
        self.is_dirty = True

    def take_back(self, size: int) -> None:
        """Cuts the newest segment back to an earlier size."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise journal_error("take back a partly written line", self.path, error) from error
        self.size = size

    def _rotate(self) -> None:
        """Begins the next segment; the full one is synced and closed with the next `take_unsynced`."""
        self._index += 1
        full = self.descriptor
        try:
            self._open()
        except OSError as error:
            self._index -= 1
            raise journal_error("begin the next journal file", self.path, error) from error
        self._retired.append(full)

    def take_unsynced(self) -> tuple[list[int], list[int]]:
        """Descriptors to `fsync` now, and those of full segments to `fsync` and close.

        The first are duplicates (to be closed as well), so that they outlive a rotation.
        """
        if not self.is_dirty:
            return [], []
        self.is_dirty = False
        retired, self._retired = self._retired, []
        return [os.dup(self.descriptor)], retired

    def close(self) -> None:
        """Closes the segment without `fsync`."""
        for descriptor in (*self._retired, self.descriptor):
            os.close(descriptor)
        self._retired = []
