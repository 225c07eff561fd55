"""trackio under test: its databases in a folder, read by another process with trackio's own functions.

Run as a program (`python -m verl.testing.trackio_service`), it answers lines `["PROJECT", "RUN_ID"]` with what trackio
has of that run, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.journal import RunDirectory
from verl.testing.services import Shown, TrackerService
from verl.tracking.backends.trackio_logger import STATUS_KEY
from verl.tracking.config_text import flatten
from verl.tracking.relay.feed_state import read_states

_OWN_KEYS = (STATUS_KEY, "verl_run_id")
_NOT_VALUES = ("step", "timestamp")
_SERVE = "import sys, trackio; trackio.show(open_browser=False, host='127.0.0.1', server_port=int(sys.argv[1]))"
_START_SECONDS = 60.0


class TrackioService(TrackerService):
    """A folder of trackio.

    Args:
        folder: The folder, which need not exist.
    """

    tracker = "trackio"

    def __init__(self, folder: Path) -> None:
        self._environment = {"TRACKIO_DIR": str(folder)}
        self._server: subprocess.Popen[bytes] | None = None
        self._reader: subprocess.Popen[str] | None = None
        self._address = ""

    def start(self) -> Mapping[str, str]:
        # trackio looks at its folder once, when it is imported: whoever opens it next in this process imports it anew.
        for name in [name for name in sys.modules if name == "trackio" or name.startswith("trackio.")]:
            del sys.modules[name]
        return self._environment

    def stop(self) -> None:
        for process in (self._server, self._reader):
            if process is not None:
                process.terminate()
                process.communicate()
        self._server = self._reader = None

    def read(self, run_directory: Path) -> Shown:
        ids = RunDirectory.open(run_directory).info.trackers[self.tracker]
        states = [state for state in read_states(run_directory) if state.tracker == self.tracker]
        return self.read_run(ids["project"], ids["run_id"], states[0].renamed if states else {})

    def read_run(self, project: str, run_id: str, renamed: Mapping[str, str]) -> Shown:
        """What trackio shows of a run.

        Args:
            project: Name under which trackio has it. run_id: trackio's own.
            renamed: Names that are spelled in another way: key of the journal -> name in trackio.
        """
        found = self.read_raw(project, run_id)
        names = {spelled: name for name, spelled in renamed.items()}
        shown = Shown()
        for row in found["rows"]:
            for key, value in row.items():
                if isinstance(key, str) and key not in _NOT_VALUES:
                    _take(shown, names.get(key, key), int(row["step"]), value)
        config = found["config"] or {}
        shown.status = config.get(STATUS_KEY)
        shown.config = flatten({key: value for key, value in config.items() if key not in _OWN_KEYS})
        for alert in reversed(found["alerts"]):  # the newest comes first
            shown.alerts.append(f"{alert['title']}: {alert['text']}" if alert["text"] else alert["title"])
        artifacts = [str(item["name"]).removeprefix(f"run-{run_id}-") for item in found["artifacts"]]
        shown.artifacts = {names.get(name, name) for name in artifacts}
        return shown

    def read_raw(self, project: str, run_id: str) -> dict[str, Any]:
        """Rows, configuration, alerts and artifacts of a run as trackio gives them."""
        if self._reader is None:
            self._reader = subprocess.Popen(
                [sys.executable, "-m", "verl.testing.trackio_service"],
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        self._reader.stdin.write(f"{json.dumps([project, run_id])}\n")
        self._reader.stdin.flush()
        return json.loads(self._reader.stdout.readline())

    def ask_server(self, function: str, **arguments: Any) -> Any:
        """Call a function of trackio's own web server, which is started for that."""
        if self._server is None:
            self._start_server()
        request = urllib.request.Request(
            f"{self._address}/api/{function}", json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)["data"]

    def _start_server(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(port)],
            env={**os.environ, **self._environment},
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{self._address}/version", timeout=5).close()
                return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise
            time.sleep(0.2)


def _take(shown: Shown, name: str, step: int, value: Any) -> None:
    match value:
        case {"_type": "trackio.markdown"}:
            shown.texts.setdefault(name, {})[step] = value["_value"]
        case {"_type": "trackio.histogram"}:
            shown.histograms.setdefault(name, {})[step] = sum(value["values"])
        case {"_type": "trackio.table"}:
            shown.tables.setdefault(name, {})[step] = [list(row.values()) for row in value["_value"]]
        case {"_type": "trackio.image"}:
            shown.images.add((name, step))
        case _:
            shown.points.setdefault(name, []).append((step, float(value)))


def _read(project: str, run_id: str) -> dict[str, Any]:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = [run for run in Api().runs(project) if run.id == run_id]
    return {
        "name": run.name,
        "rows": SQLiteStorage.get_logs(project, run_id=run_id),
        "config": run.config,
        "alerts": run.alerts(),
        "artifacts": SQLiteStorage.get_run_artifacts(project, run.name, run_id)["output"],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(_read(*json.loads(line)))}\n")
        sys.stdout.flush()
