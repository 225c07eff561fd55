"""Read what the W&B SDK wrote offline: its transaction logs (`run-*.wandb`), which it has no reader for any more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl.tracking.backends.wandb_files import records_of


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
    run = OfflineRun(folder=path.parent)
    for record in records_of(path):
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
