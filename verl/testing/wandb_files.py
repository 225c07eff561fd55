"""Read what the W&B SDK wrote offline: its transaction logs (`run-*.wandb`), which it has no reader for any more.

The file is a LevelDB log: after a header of 7 bytes, blocks of 32 KiB with chunks `checksum, length, type, data`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = struct.Struct("<4sHB")
_CHUNK = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass(slots=True)
class OfflineRun:
    """A run in files.

    Attributes:
        run_id: Its id. rows: `_step` and values of each row.
        config: Configuration. summary: What was set of the run as a whole.
        exit_code: How it ended; nothing if the end is not in the file.
        artifacts: Names of artifacts. folder: The folder of the file.
    """

    run_id: str = ""
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    artifacts: set[str] = field(default_factory=set)
    folder: Path = Path()


def read_offline_run(path: Path) -> OfflineRun:
    """Read one file, up to where it is torn if its writer was killed.

    Args:
        path: A `run-*.wandb`.

    Raises:
        ValueError: It is no such file.
    """
    from wandb.proto import wandb_internal_pb2 as messages

    run = OfflineRun(folder=path.parent)
    for data in _records(path.read_bytes()):
        record: Any = messages.Record.FromString(data)  # pyright: ignore[reportAttributeAccessIssue]
        kind = record.WhichOneof("record_type")
        if kind == "history":
            run.rows.append((record.history.step.num, _items(record.history.item)))
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "run":
            run.run_id = record.run.run_id
            run.config |= _items(record.run.config.update)
        elif kind == "artifact" and record.artifact.type != "run_table":
            run.artifacts.add(record.artifact.name)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _items(items: Iterable[Any]) -> dict[str, Any]:
    """Values by key; what the SDK took apart is put together again."""
    found: dict[str, Any] = {}
    for item in items:
        *path, last = item.nested_key or [item.key]
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = json.loads(item.value_json)
    return found


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
