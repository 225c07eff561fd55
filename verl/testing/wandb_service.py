"""Weights & Biases under test: online against a server of this process, offline as files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.journal import RunDirectory
from verl.testing.services import Fault, Shown, TrackerService
from verl.testing.wandb_files import OfflineRun, read_offline_run
from verl.testing.wandb_server import API_KEY, OTHER_KEY, WandbServer
from verl.tracking.config_text import flatten
from verl.tracking.relay.feed_state import read_states

_STATUS_BY_EXIT = {0: "finished", 1: "failed", 255: "killed"}
_OWN_KEYS = ("_step", "_runtime", "_timestamp", "_journal", "global_step")
_LEVEL = r"\[(?:info|warning|error)\] "
_MESSAGE_KEYS = ("alerts", "notes")


class WandbService(TrackerService):
    """A W&B server.

    Args:
        folder: Unused: everything is in the memory of this process.

    Attributes:
        server: The server.
    """

    tracker = "wandb"
    faults: tuple[Fault, ...] = ("down", "hang", 401, 429, 503)

    def __init__(self, folder: Path | None = None) -> None:
        self.server = WandbServer()

    def start(self) -> Mapping[str, str]:
        self.server.start()
        return self.server.environment()

    def stop(self) -> None:
        self.server.fail(None)
        self.server.stop()

    def as_shown(self, value: float) -> float:
        return float(value)

    def fail(self, fault: Fault | None) -> None:
        self.server.fail(fault)

    def change_login(self, *, is_new: bool) -> Mapping[str, str]:
        self.server.key = OTHER_KEY if is_new else API_KEY
        return self.server.environment()

    def read(self, run_directory: Path) -> Shown:
        return self.read_run(tracked_id(run_directory), renamed(run_directory))

    def read_run(self, run_id: str, renamed: Mapping[str, str]) -> Shown:
        """What the server shows of a run.

        Args:
            run_id: Id in W&B. renamed: Key of the journal -> name in W&B.
        """
        run = self.server.run(run_id)
        shown = shown_rows(run.history, run.files, renamed)
        shown.config = flatten({key: item["value"] for key, item in run.config.items() if key != "_wandb"})
        shown.status = _status(run.exit_code, run.summary)
        shown.alerts += _end_of(run.summary)
        shown.artifacts = {
            _artifact_name(sent["artifactCollectionName"], run_id)
            for sent in self.server.artifacts.values()
            if sent.get("committed") and sent["artifactTypeName"] != "run_table"
        }
        return shown


class WandbOfflineService(TrackerService):
    """W&B without a server (`WANDB_MODE=offline`).

    Args:
        folder: Unused: the files lie in the run directory.
    """

    tracker = "wandb"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()

    def start(self) -> Mapping[str, str]:
        return {"WANDB_MODE": "offline"}

    def stop(self) -> None:
        """There is nothing to stop."""

    def as_shown(self, value: float) -> float:
        return float(value)

    def read(self, run_directory: Path) -> Shown:
        return self.read_folder(run_directory, tracked_id(run_directory), renamed(run_directory))

    def read_folder(self, folder: Path, run_id: str, renamed: Mapping[str, str]) -> Shown:
        """What `wandb sync` would upload of a run.

        Args:
            folder: Where the SDK's folder `wandb` is. run_id: Id in W&B. renamed: Key -> name in W&B.
        """
        whole = OfflineRun()
        files: dict[str, bytes] = {}
        for path in sorted(folder.glob(f"wandb/offline-run-*/run-{run_id}.wandb")):
            part = read_offline_run(path)
            whole.rows += part.rows
            whole.config |= part.config
            whole.summary |= part.summary
            whole.artifacts |= part.artifacts
            whole.exit_code = part.exit_code
            media = part.folder / "files"
            files |= {str(file.relative_to(media)): file.read_bytes() for file in media.rglob("*") if file.is_file()}
        steps = [step for step, _ in whole.rows]
        if steps != sorted(set(steps)):
            raise AssertionError(f"rows are twice, or out of order: {steps}")
        shown = shown_rows([row for _, row in whole.rows], files, renamed)
        shown.config = flatten({key: value for key, value in whole.config.items() if not key.startswith("_wandb")})
        shown.status = _status(whole.exit_code, whole.summary)
        shown.alerts += _end_of(whole.summary)
        shown.artifacts = {_artifact_name(name, run_id) for name in whole.artifacts}
        return shown


def tracked_id(run_directory: Path) -> str:
    """Id of a run in W&B, as `run.json` has it."""
    return RunDirectory.open(run_directory).info.trackers["wandb"]["run_id"]


def renamed(run_directory: Path) -> Mapping[str, str]:
    """Names that W&B has otherwise, as the feed of a run noted them."""
    states = [state for state in read_states(run_directory) if state.tracker == "wandb"]
    return states[0].renamed if states else {}


def shown_rows(rows: list[dict[str, Any]], files: Mapping[str, bytes], renamed: Mapping[str, str]) -> Shown:
    """Read rows of a history.

    Args:
        rows: Values by name. files: The run's files. renamed: Key of the journal -> name in W&B.
    """
    shown = Shown()
    names = {spelled: name for name, spelled in renamed.items()}
    for row in rows:
        step = row["global_step"]
        for key, value in row.items():
            if key in _MESSAGE_KEYS:
                shown.alerts += re.split(rf"(?:^|\n){_LEVEL}", value)[1:]
            elif key not in _OWN_KEYS:
                _take(shown, names.get(key, key), step, value, files)
    return shown


def _take(shown: Shown, name: str, step: int, value: Any, files: Mapping[str, bytes]) -> None:
    if not isinstance(value, dict):
        shown.points.setdefault(name, []).append((step, float(value)))
        return
    kind = value["_type"]
    if kind == "histogram":
        shown.histograms.setdefault(name, {})[step] = sum(value["values"])
    elif kind == "html-file":
        page = files[value["path"]].decode()
        shown.texts.setdefault(name, {})[step] = html.unescape(re.sub(r"^<div[^>]*>|</div>$", "", page))
    elif kind == "table-file":
        shown.tables.setdefault(name, {})[step] = json.loads(files[value["path"]])["data"]
    elif kind == "image-file" and files[value["path"]]:
        shown.images.add((name, step))


def _status(exit_code: int | None, summary: Mapping[str, Any]) -> str:
    if exit_code is None:
        return "running"
    status = str(summary.get("status"))
    if status != _STATUS_BY_EXIT[exit_code] and (status, exit_code) != ("crashed", 1):
        raise AssertionError(f"the run ended with {exit_code}, and says {status!r}")
    return status


def _end_of(summary: Mapping[str, Any]) -> list[str]:
    return [summary["error"]] if "error" in summary else []


def _artifact_name(name: str, run_id: str) -> str:
    return name.removesuffix(f"-{run_id.partition('-')[0]}")
