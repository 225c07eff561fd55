"""Failures of the file system in words that say what to do."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from verl.errors import JournalError

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit (ulimit -f) is reached",
}


def journal_error(action: str, path: Path, error: OSError) -> JournalError:
    """`JournalError` for a failed file operation; its `errno` is that of the cause.

    Args:
        action: What failed, such as "write the journal".
        path: File or folder that it failed on.
    """
    if error.errno in _FULL:
        reason = f"{_FULL[error.errno]}{_space(path)}. Free some space (old runs, checkpoints/) or raise the limit"
        advice = "nothing written before is lost, and the same call can then be repeated"
    elif error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        reason = f"{_text(error)}. Choose another folder with trainer.log_dir or VERL_LOG_DIR"
        advice = "nothing was changed"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = f"{_text(error)}. Give write permission, or choose another folder with trainer.log_dir or VERL_LOG_DIR"
        advice = "nothing was changed"
    else:
        reason = f"{_text(error)}. Check the disk and its mount"
        advice = "what was written before is still readable"
    failure = JournalError(f"Cannot {action} at {path}: {reason}; {advice}.")
    failure.errno = error.errno
    return failure


def _text(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _space(path: Path) -> str:
    for place in (path, *path.parents):
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        return f" ({usage.free / 2**20:.0f} MiB free of {usage.total / 2**20:.0f} MiB)"
    return ""
