"""Read what SwanLab wrote offline, with the SDK's own reader; a file that was cut off is read as far as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.proto.swanlab.run.v1.run_pb2 import RunState
from swanlab.sdk.internal.core_python.store import DataStoreReader
from swanlab.sdk.internal.pkg import adapter


@dataclass(slots=True)
class OfflineRun:
    """What a run directory of SwanLab holds.

    Attributes:
        identity: Id. settings: Project, name, group and so on.
        scalars: (key, step, value) in the order in which they were logged.
        times: Unix seconds of each of them.
        media: (key, step, content).
        config: The configuration, nested. files: Names of saved files.
        state: `FINISHED`, `CRASHED` or `ABORTED`; nothing if there is no end.
    """

    identity: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    scalars: list[tuple[str, int, float]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    media: list[tuple[str, int, bytes]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    state: str | None = None


def read_offline_run(directory: Path) -> OfflineRun:
    """Read a directory such as `swanlog/run-k3x9a2bc`.

    Raises:
        FileNotFoundError: There is no run file in it.
    """
    path = next(directory.glob("run-*.swanlab"), None)
    if path is None:
        raise FileNotFoundError(f"{directory} has no file run-*.swanlab")
    run = OfflineRun()
    reader = DataStoreReader()
    reader.open(path)
    try:
        for raw in reader:
            record = Record()
            record.ParseFromString(raw)
            _take(record, run, directory)
    finally:
        reader.close()
    config = directory / "files" / "config.yaml"
    if config.exists():
        run.config = {key: entry["value"] for key, entry in (yaml.safe_load(config.read_text()) or {}).items()}
    return run


def _take(record: Record, run: OfflineRun, directory: Path) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "scalar":
        run.scalars.append((record.scalar.key, record.scalar.step, record.scalar.value.number))
        run.times.append(record.scalar.timestamp.ToMicroseconds() / 1e6)
    elif kind == "media":
        folder = directory / "media" / adapter.medium[record.media.type]
        for item in record.media.value.items:
            run.media.append((record.media.key, record.media.step, (folder / item.filename).read_bytes()))
    elif kind == "start":
        start = record.start
        run.identity = start.id
        run.settings = {"project": start.project, "name": start.name, "group": start.group}
    elif kind == "save" and record.save.source_path and not record.save.type:
        run.files.append(record.save.name)
    elif kind == "finish":
        run.state = RunState.Name(record.finish.state).removeprefix("RUN_STATE_")
