"""TensorBoard's event files: begun, continued and taken away by whom they belong to."""

# TensorBoard's generated message classes have no types that a checker could see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import shutil
import socket
import struct
import time
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata
from tensorboard.summary.writer.record_writer import RecordWriter

from verl.journal.files import sync_descriptor, sync_folder
from verl.tracking import projector
from verl.tracking.logger import StateLostError

_RECORD_HEAD = struct.Struct("<QI")
_RECORD_OVERHEAD = _RECORD_HEAD.size + 4
_LONGEST_FIRST_RECORD = 10_000  # it says who wrote the file


class EventFile:
    """One event file, open for appending.

    Attributes:
        path: The file. size: Bytes handed over so far; on disk after `flush`.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        # Unbuffered is no option (one system call per field); closed by `close`.
        self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(size)
        self._file.seek(size)
        self._records = RecordWriter(self._file)

    @classmethod
    def begin(cls, folder: Path, marker: str, attempt: int, seconds: float) -> EventFile:
        """Start a file, whose name no file had before: a server that runs takes it for what it is, a new one.

        Args:
            folder: Where. marker: What tells it from files of others, stored in its first record.
            attempt: Attempt, from 1; readers take the files of a folder in the order of `seconds`.
            seconds: Unix time of the first record.
        """
        name = f"events.out.tfevents.{int(seconds):010d}.{socket.gethostname()}.{time.time_ns():x}.{attempt - 1}"
        file = cls(folder / f".begun-{time.time_ns():x}", 0)
        file.write(
            Event(wall_time=seconds, file_version="brain.Event:2", source_metadata=SourceMetadata(writer=marker))
        )
        file.flush()
        # Only now: a file under this name always says whose it is, so one that was left behind can be removed.
        file.path = file.path.rename(folder / name)
        sync_folder(folder)
        return file

    @classmethod
    def continued(cls, path: Path, size: int) -> EventFile:
        """Go on after the acknowledged bytes.

        Raises:
            StateLostError: Not all of them are there.
        """
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise StateLostError(f"{path.name} has {found} of the {size} bytes that were written")
        return cls(path, size)

    def write(self, event: Event) -> None:
        """Append an event."""
        data = event.SerializeToString()
        self._records.write(data)
        self.size += len(data) + _RECORD_OVERHEAD

    def flush(self) -> None:
        """Also through a power loss: what is acknowledged now is not written again."""
        self._file.flush()
        sync_descriptor(self._file.fileno())

    def close(self) -> None:
        """Close it; what was not flushed may be there or not."""
        self._file.close()


def forget_everything(seconds: float) -> Event:
    """An event at which a server that is running forgets what it has read of the run (one with Python's reader)."""
    return Event(wall_time=seconds, step=0, session_log=SessionLog(status=SessionLog.START))


def own_files(folder: Path, marker: str) -> list[Path]:
    """Event files of a folder whose marker begins so."""
    return [path for path in sorted(folder.glob("events.out.tfevents.*")) if _writer_of(path).startswith(marker)]


def remove_files_of_folders(run_directory: Path, marker: str) -> None:
    """Remove what is not in the event files of the run itself: runs below it, and the embedding projector's files."""
    for folder in (path for path in run_directory.iterdir() if path.is_dir()):
        files = own_files(folder, marker)
        for path in files:
            path.unlink()
        if files and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(run_directory / projector.FOLDER, ignore_errors=True)
    (run_directory / "projector_config.pbtxt").unlink(missing_ok=True)


def _writer_of(path: Path) -> str:
    """Marker of an event file; empty if it has none."""
    with path.open("rb") as file:
        head = file.read(_RECORD_HEAD.size)
        length = _RECORD_HEAD.unpack(head)[0] if len(head) == _RECORD_HEAD.size else 0
        data = file.read(min(length, _LONGEST_FIRST_RECORD))
    try:
        return Event.FromString(data).source_metadata.writer
    except DecodeError:
        return ""
