"""Brings what was appended to the disk, without keeping the one who appends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from verl.errors import JournalError
from verl.journal.failures import journal_error
from verl.journal.files import sync_descriptor, sync_folder
from verl.journal.stream_file import StreamFile


class Syncer:
    """`fsync` of a writer's files: on request, and from time to time in a thread.

    Args:
        journal: The journal folder. files: The files, guarded by `lock`.
        lock: The lock that is held while something is appended; never held during an `fsync`.
        seconds: Longest time between an append and its `fsync`.
    """

    def __init__(self, journal: Path, files: list[StreamFile], lock: threading.RLock, seconds: float) -> None:
        self._journal = journal
        self._files = files
        self._lock = lock
        self._seconds = seconds
        self._failure: JournalError | None = None
        self._is_stopping = threading.Event()
        threading.Thread(target=self._sync_from_time_to_time, name="verl-journal-sync", daemon=True).start()

    def raise_failure(self) -> None:
        """Raises what went wrong in the background, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def sync(self) -> None:
        """Returns when everything appended so far is on the disk.

        Raises:
            JournalError: The disk failed, or the files were deleted.
        """
        self._sync(list(self._files))

    def stop(self) -> None:
        """Syncs a last time and closes the files.

        Raises:
            JournalError: As `sync`; the files are closed all the same.
        """
        self._is_stopping.set()
        try:
            self.sync()
        finally:
            with self._lock:
                while self._files:
                    self._files.pop().close()
        self.raise_failure()

    def _sync(self, files: list[StreamFile]) -> None:
        duplicates: list[int] = []
        full_segments: list[tuple[StreamFile, list[int]]] = []
        try:
            with self._lock:
                for file in files if self._files else ():  # else closed meanwhile, and synced before that
                    descriptors, full = file.begin_sync()
                    duplicates += descriptors
                    full_segments.append((file, full))
            for descriptor in duplicates:
                sync_descriptor(descriptor)
            is_deleted = any(os.fstat(descriptor).st_nlink == 0 for descriptor in duplicates)
            if not is_deleted:
                sync_folder(self._journal)
        except OSError as error:
            raise journal_error("sync the journal", self._journal, error) from error
        finally:
            for descriptor in duplicates:
                os.close(descriptor)
        if is_deleted:
            raise JournalError(
                f"A file of the journal in {self._journal} was deleted while it is being written: what was in it "
                "is lost, and so is all that is still to come. Stop the run and start it in another trainer.log_dir."
            )
        with self._lock:
            for file, full in full_segments:
                file.end_sync(full)

    def _sync_from_time_to_time(self) -> None:
        while not self._is_stopping.wait(self._seconds):
            with self._lock:
                files = [file for file in self._files if file.is_unsynced]
            try:
                if files:
                    self._sync(files)
            except JournalError as error:
                self._failure = error  # the next append or sync raises it
