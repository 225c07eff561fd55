"""Small whole files, written so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from verl.journal.failures import journal_error


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically and durably: temporary file, fsync, rename, fsync of the folder.

    Raises:
        JournalError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise journal_error(f"write {path.name}", path, error) from error


def sync_folder(folder: Path) -> None:
    """Makes new and renamed names in a folder survive a power loss (where the file system can)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int) -> None:
    """`fsync`; a file system that has none (some FUSE mounts) is no error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
