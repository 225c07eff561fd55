"""SwanLab under test: the real SDK online, on a server of ours, and offline, in its own files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl.journal import RunDirectory
from verl.testing.services import Fault, Shown, TrackerService
from verl.testing.swanlab_files import read_offline_run
from verl.testing.swanlab_server import KEY, OTHER_KEY, Experiment, SwanlabServer
from verl.tracking.backends.swanlab_charts import KINDS
from verl.tracking.backends.swanlab_logger import OWN_SECTION
from verl.tracking.config_text import flatten
from verl.tracking.relay.feed_state import read_states

_KIND = re.compile(rf"(.*) \(({'|'.join(KINDS)})\)", re.DOTALL)
_STATES = {"finished": "FINISHED", "failed": "CRASHED", "crashed": "CRASHED", "killed": "ABORTED"}


class SwanlabService(TrackerService):
    """SwanLab online, on a loopback server that keeps whatever it is sent.

    Args:
        folder: Not needed, for the server keeps all in memory.
    """

    tracker = "swanlab"
    faults: tuple[Fault, ...] = ("down", "hang", 401, 429, 503)

    def __init__(self, folder: Path | None = None) -> None:
        self.server = SwanlabServer()

    def start(self) -> Mapping[str, str]:
        self.server.start()
        return self.server.environment()

    def stop(self) -> None:
        self.server.stop()

    def as_shown(self, value: float) -> float:
        return _without_infinity(value)

    def fail(self, fault: Fault | None) -> None:
        self.server.fail(fault)

    def change_login(self, *, is_new: bool) -> Mapping[str, str]:
        self.server.key = OTHER_KEY if is_new else KEY
        return self.server.environment()

    def read(self, run_directory: Path) -> Shown:
        identity = RunDirectory.open(run_directory).info.trackers[self.tracker]["run_id"]
        return shown_online(self.server.experiments[identity], _names(run_directory))


class SwanlabOfflineService(TrackerService):
    """SwanLab offline: files in the run directory.

    Args:
        folder: Not needed.
    """

    tracker = "swanlab"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()

    def start(self) -> Mapping[str, str]:
        return {"SWANLAB_MODE": "offline"}

    def stop(self) -> None:
        """There is nothing to stop."""

    def as_shown(self, value: float) -> float:
        return _without_infinity(value)

    def read(self, run_directory: Path) -> Shown:
        directory = RunDirectory.open(run_directory).info.trackers[self.tracker]["directory"]
        run = read_offline_run(Path(directory))
        scalars = [(key, step, _without_infinity(value)) for key, step, value in run.scalars]
        shown = _shown(scalars, run.media, _names(run_directory))
        _add_config(shown, run.config, run.state)
        shown.artifacts = {_names(run_directory).get(name, name) for name in run.files}
        return shown


def shown_online(experiment: Experiment, names: Mapping[str, str]) -> Shown:
    """What the server has of an experiment.

    Args:
        experiment: The experiment.
        names: SwanLab's names -> the journal's, for those that are spelled in another way.
    """
    scalars = [(key, step, math.nan if value == "nan" else value) for key, step, value in experiment.scalars]
    media = [
        (record["key"], record["index"], experiment.blobs[path])
        for record in experiment.media
        for path in record["data"]
    ]
    shown = _shown(scalars, media, names)
    _add_config(shown, experiment.config, experiment.states[-1])
    shown.artifacts = {names.get(name, name) for name in experiment.files}
    return shown


def _without_infinity(value: float) -> float:
    """SwanLab sends infinities as NaN."""
    return float(value) if math.isfinite(value) else math.nan


def _names(run_directory: Path) -> dict[str, str]:
    for state in read_states(run_directory):
        if state.tracker == "swanlab":
            return {spelled: name for name, spelled in state.renamed.items()}
    return {}


def _shown(
    scalars: Iterable[tuple[str, int, float]], media: Iterable[tuple[str, int, bytes]], names: Mapping[str, str]
) -> Shown:
    shown = Shown()
    for key, step, value in scalars:
        shown.points.setdefault(names.get(key, key), []).append((step, value))
    for key, step, content in media:
        match = _KIND.fullmatch(key)
        assert match is not None, f"{key!r} does not say what it is"
        _add_media(shown, names.get(match[1], match[1]), match[2], step, content)
    return shown


def _add_media(shown: Shown, name: str, kind: str, step: int, content: bytes) -> None:
    if kind == "image":
        shown.images.add((name, step))
    elif kind == "text":
        shown.texts.setdefault(name, {})[step] = content.decode()
    elif kind in ("alerts", "notes"):
        heading, _, text = content.decode().partition("\n\n")
        title = heading.split("**")[2].strip()
        shown.alerts.append(f"{title}: {text}" if title else text)
    else:
        options: dict[str, Any] = json.loads(content)
        if kind == "histogram":
            shown.histograms.setdefault(name, {})[step] = sum(options["series"][0]["data"])
        else:
            fields = [column["field"] for column in options["colDefs"]]
            shown.tables.setdefault(name, {})[step] = [[row.get(f) for f in fields] for row in options["rowData"]]


def _add_config(shown: Shown, config: Mapping[str, Any], state: str | None) -> None:
    shown.config = flatten({key: value for key, value in config.items() if key != OWN_SECTION})
    word = config.get(OWN_SECTION, {}).get("status")
    # Our own word counts only if SwanLab's state, which is what a person sees, says the same.
    shown.status = word if _STATES.get(word, "RUNNING") == (state or "RUNNING") else state
