"""TensorBoard under test: its files as its own reader gives them, and the real server on a free port."""

from __future__ import annotations

import html
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import orjson
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl.testing.services import Shown, TrackerService
from verl.tracking.backends.tensorboard_logger import ARTIFACTS, STATUS_TAG
from verl.tracking.backends.tensorboard_values import TEXT_SUFFIX
from verl.tracking.relay.feed_state import read_states

_EVERYTHING = {"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}  # no sampling
_ALERT_TAGS = ("alerts", "notes")
_WAIT_SECONDS = 60.0
_T = TypeVar("_T")


class TensorboardService(TrackerService):
    """Files are read as they are; a server is started only by `serve`."""

    tracker = "tensorboard"

    def __init__(self, folder: Path | None = None) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._address = ""

    def start(self) -> Mapping[str, str]:
        return {}

    def as_shown(self, value: float) -> float:
        with np.errstate(over="ignore", under="ignore"):
            return float(np.float32(value))

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None

    def read(self, run_directory: Path) -> Shown:
        states = [state for state in read_states(run_directory) if state.tracker == self.tracker]
        return read_events(run_directory, states[0].renamed if states else {})

    def serve(self, log_dir: Path, *options: str) -> None:
        """Start the real server, with TensorBoard's fast reader where it is installed.

        Args:
            log_dir: Folder that it shows, with the runs in it. options: More for its command line.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(log_dir), "--port", str(port)]
        self._server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--reload_interval", "1", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON that the server answers to `/data/<path>`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}/data/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def curve(self, tag: str, run: str = ".") -> list[tuple[int, float]]:
        """(step, value) of a curve as the server shows it."""
        points = self.ask(f"plugin/scalars/scalars?run={quote(run)}&tag={quote(tag)}")
        return [(step, value) for _, step, value in points]

    def eventually(self, get: Callable[[], _T], wanted: Callable[[_T], bool]) -> _T:
        """What `get` gives once it is as wanted, or at last: the server reads files in its own time."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                answer = get()
                if wanted(answer) or time.monotonic() > deadline:
                    return answer
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


def read_events(directory: Path, renamed: Mapping[str, str]) -> Shown:
    """What is in the event files of a folder.

    Args:
        directory: Folder. renamed: Names that are spelled in another way: key of the journal -> tag.
    """
    events: Any = EventAccumulator(str(directory), size_guidance=_EVERYTHING).Reload()
    names: dict[str, str] = {spelled: name for name, spelled in renamed.items()}
    tags: Mapping[str, list[str]] = events.Tags()
    shown = Shown()
    for tag in tags["scalars"]:
        shown.points[names.get(tag, tag)] = [(event.step, event.value) for event in events.Scalars(tag)]
    for tag in tags["histograms"]:
        found = {event.step: event.histogram_value.num for event in events.Histograms(tag)}
        shown.histograms[names.get(tag, tag)] = found
    shown.images = {(names.get(tag, tag), event.step) for tag in tags["images"] for event in events.Images(tag)}
    alerts: list[tuple[float, int, str]] = []
    for tag in tags["tensors"]:
        if not tag.endswith(TEXT_SUFFIX):
            continue
        name = tag.removesuffix(TEXT_SUFFIX)
        for event in events.Tensors(tag):
            text = event.tensor_proto.string_val[0].decode()
            if name.partition("/")[0] in _ALERT_TAGS:
                alerts.append((event.wall_time, len(alerts), _alert_text(text)))
            else:
                _take(shown, names.get(name, name), event.step, text)
    shown.alerts = [text for _, _, text in sorted(alerts)]
    return shown


def _take(shown: Shown, name: str, step: int, text: str) -> None:
    if name == STATUS_TAG:
        shown.status = text
    elif name == "config":
        shown.config = {
            key: orjson.loads(value) for key, _, value in (line.strip().partition(": ") for line in text.splitlines())
        }
    elif name.startswith(ARTIFACTS):
        shown.artifacts.add(name.removeprefix(ARTIFACTS))
    elif text.startswith("| ") and text.partition("\n")[2].startswith("|---|"):
        shown.tables.setdefault(name, {})[step] = [_cells(line) for line in text.splitlines()[2:]]
    else:
        shown.texts.setdefault(name, {})[step] = text


def _cells(line: str) -> list[Any]:
    return [html.unescape(cell.replace("<br>", "\n")) for cell in line[2:-2].split(" | ")]


def _alert_text(text: str) -> str:
    heading, _, body = text.partition("\n\n")
    title = heading.rpartition("**")[2].strip()
    return f"{title}: {body}" if title else body
