"""The folders that the W&B SDK writes, and the transaction logs (`run-*.wandb`) in them.

Such a file is a LevelDB log: after a header of 7 bytes, blocks of 32 KiB with chunks `checksum, length, type, data`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl.tracking.backends.wandb_session import FINGERPRINT_KEY

_SUPERSEDED = "superseded"
_BLOCK = 32768
_HEADER = struct.Struct("<4sHB")
_CHUNK = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def offline_folders(folder: Path, run_id: str) -> list[Path]:
    """Folders of a run that `wandb sync` is to be given, oldest first.

    Args:
        folder: Where the SDK's folder `wandb` is. run_id: Id in W&B.
    """
    return sorted(path.parent for path in _sdk_folder(folder).glob(f"offline-run-*/run-{run_id}.wandb"))


def move_aside(folder: Path, run_id: str, keep: Path) -> None:
    """Move the older folders of a run, in all its branches, to where `wandb sync` does not take them.

    Args:
        folder: Where the SDK's folder `wandb` is. run_id: Id of the run's first branch. keep: The one that is written.

    Raises:
        OSError: A folder cannot be moved.
    """
    aside = _sdk_folder(folder) / _SUPERSEDED
    is_of_run = re.compile(rf"run-{re.escape(run_id)}(-\d+)?\.wandb")
    for file in sorted(_sdk_folder(folder).glob("offline-run-*/run-*.wandb")):
        if is_of_run.fullmatch(file.name) and file.parent.name != keep.name:
            aside.mkdir(exist_ok=True)
            file.parent.rename(_free(aside / file.parent.name))


def remove_scratch(folder: Path, run_id: str) -> None:
    """Remove the folders of an online run: copies of what the server has.

    Args:
        folder: Where the SDK's folder `wandb` is. run_id: Id in W&B.
    """
    home = _sdk_folder(folder)
    is_of_run = re.compile(rf"run-\d+_\d+-{re.escape(run_id)}(-\d+)?")
    for path in home.glob("run-*"):
        if is_of_run.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in home.iterdir():
            if path.is_symlink() and not path.exists():  # the SDK's links to its latest run
                path.unlink()
        home.rmdir()


def is_whole(file: Path, fingerprint: int | None) -> bool:
    """Whether a transaction log has everything up to a row, and the end of its run.

    Args:
        file: The log. fingerprint: Of the last row that was written to it; nothing if there was none.
    """
    last, has_end = None, False
    for record in records_of(file):
        if record.HasField("history"):
            last = record
        has_end = has_end or record.HasField("exit")
    if last is None or fingerprint is None:
        return has_end and last is fingerprint
    values = {item.key or item.nested_key[-1]: item.value_json for item in last.history.item}
    return has_end and json.loads(values[FINGERPRINT_KEY]) == fingerprint


def records_of(file: Path) -> Iterator[Any]:
    """Messages of a transaction log, up to where it is torn if its writer was killed.

    Raises:
        ValueError: It is no such file.
    """
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    for data in _records(file.read_bytes()):
        yield messages.Record.FromString(data)


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _sdk_folder(folder: Path) -> Path:
    hidden = folder / ".wandb"
    return hidden if hidden.is_dir() else folder / "wandb"


def _records(data: bytes) -> Iterator[bytes]:
    if len(data) < _HEADER.size:
        return
    ident, magic, _ = _HEADER.unpack_from(data)
    if ident != b":W&B" or magic != 0xBEE1:
        raise ValueError(f"no W&B file: it begins with {data[:7]!r}")
    position, parts = _HEADER.size, b""
    while position + _CHUNK.size <= len(data):
        left = _BLOCK - position % _BLOCK
        checksum, length, kind = _CHUNK.unpack_from(data, position)
        if left < _CHUNK.size or kind == 0:  # padding
            position += left
            continue
        chunk = data[position + _CHUNK.size : position + _CHUNK.size + length]
        if len(chunk) < length or zlib.crc32(bytes([kind]) + chunk) != checksum:
            return
        position += _CHUNK.size + length
        parts = chunk if kind in (_WHOLE, _FIRST) else parts + chunk
        if kind in (_WHOLE, _LAST):
            yield parts
