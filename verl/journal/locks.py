"""Locks on a run directory: one writer per file, one training process per run.

A lock is an `flock` on a small file that also names its owner, for the error message. The kernel
frees it when the owner dies. Two cases need the owner's name: a forked child that outlives the
owner keeps the lock held (it is taken over), and a file system without `flock` (some Lustre
mounts) where only the name tells whether another process is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson

from verl.errors import JournalError
from verl.journal.failures import journal_error
from verl.journal.processes import ProcessIdentity

_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_GUARD_SECONDS = 10.0


@contextmanager
def short_lock(folder: Path) -> Iterator[None]:
    """Excludes other processes for the length of a small update in `folder` (which must exist).

    Raises:
        JournalError: The folder cannot be written, or another process held it for 10 seconds.
    """
    path = folder / ".guard"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise journal_error("lock the run directory", path, error) from error
    try:
        deadline = time.monotonic() + _GUARD_SECONDS
        while not _try_flock(descriptor):
            if time.monotonic() > deadline:
                raise JournalError(
                    f"{path} has been locked by another process for {_GUARD_SECONDS:.0f} s; find and end that process."
                )
            time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


class OwnedLock:
    """A lock held for as long as this process uses something.

    Args:
        path: Lock file; created in an existing folder, never removed.
        purpose: What it protects, for the message: "a process already {purpose}".
    """

    def __init__(self, path: Path, purpose: str) -> None:
        self._path = path
        self._purpose = purpose
        self._descriptor: int | None = None
        self._owner_pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this very process holds it."""
        return self._descriptor is not None and self._owner_pid == os.getpid()

    def acquire(self) -> None:
        """Takes the lock, also from an owner that died.

        Raises:
            JournalError: A living process holds it; the message names process and host.
        """
        with short_lock(self._path.parent):
            try:
                self._descriptor = self._take()
            except OSError as error:
                if isinstance(error, JournalError):
                    raise
                raise journal_error("lock the run directory", self._path, error) from error
            self._owner_pid = os.getpid()

    def release(self) -> None:
        """Gives the lock back; a forked child only drops its copy."""
        if self._descriptor is None:
            return
        if self.is_held:
            os.ftruncate(self._descriptor, 0)
            _unlock(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None

    def _take(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            owner = _read_owner(descriptor)
            if not _try_flock(descriptor, assume=owner is None or not owner.is_alive_here()):
                if owner is None or not owner.is_dead():
                    raise JournalError(self._held_message(owner))
                # An orphan of the dead owner holds the old file: put a new file in its place.
                os.unlink(self._path)
                os.close(descriptor)
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                _try_flock(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, orjson.dumps(asdict(ProcessIdentity.current())), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _held_message(self, owner: ProcessIdentity | None) -> str:
        who = "Another process" if owner is None else str(owner).capitalize()
        if owner is not None and owner.is_current():
            who = f"This same process ({owner.pid})"
        return (
            f"{who} already {self._purpose}: {self._path.parent.parent}. "
            "Two of them would mix up the run. Wait for it or end it, or use another trainer.log_dir."
        )


def _try_flock(descriptor: int, *, assume: bool = True) -> bool:
    """Tries the lock without waiting; `assume` is the answer where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return assume
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _read_owner(descriptor: int) -> ProcessIdentity | None:
    content = os.pread(descriptor, 4096, 0)
    try:
        raw = orjson.loads(content)
        return ProcessIdentity(int(raw["pid"]), str(raw["host"]), float(raw["since"]))
    except (ValueError, KeyError, TypeError):
        return None
