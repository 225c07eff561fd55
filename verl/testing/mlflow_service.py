"""MLflow under test: a real server behind a proxy with faults, or a database file; read back with MLflow's client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import orjson
import yaml

from verl.journal import RunDirectory
from verl.testing.faulty_proxy import FaultyProxy
from verl.testing.services import Fault, Shown, TrackerService
from verl.tracking.backends.mlflow_alerts import read_alerts
from verl.tracking.backends.mlflow_logger import CONFIG_CHANGED, CONFIG_FILE
from verl.tracking.backends.mlflow_names import metric_spelling, param_text
from verl.tracking.backends.mlflow_notes import RENAMED_FILE
from verl.tracking.backends.mlflow_run import STATUS
from verl.tracking.backends.mlflow_server import MlflowServer, set_package_defaults
from verl.tracking.config_text import flatten

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_TOKEN = "the-token-of-this-test"
_INFINITE = 1.7976931348623157e308  # what MLflow stores for infinity


class MlflowSqliteService(TrackerService):
    """A database file, with the files of runs beside it.

    Args:
        folder: Folder for both.
    """

    tracker = "mlflow"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"

    def start(self) -> Mapping[str, str]:
        set_package_defaults()
        self.folder.mkdir(parents=True, exist_ok=True)
        return {"MLFLOW_TRACKING_URI": self.uri}

    def stop(self) -> None:
        pass

    def read(self, run_directory: Path) -> Shown:
        ids = RunDirectory.open(run_directory).info.trackers[self.tracker]
        with MlflowServer(self.uri).asked_to("show the run") as client:
            return read_run(client, ids["run_id"])

    def as_shown(self, value: float) -> float:
        return float(value)


class MlflowService(MlflowSqliteService):
    """`mlflow server` with a database, on a free port of this machine, behind a proxy with faults.

    Args:
        folder: Folder for database, files and log.

    Attributes:
        proxy: The proxy; what is tested knows its address alone.
    """

    faults = ("down", "hang", 401, 429, 503)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._database = self.uri
        self._port = _free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.proxy = FaultyProxy("127.0.0.1", self._port)

    def start(self) -> Mapping[str, str]:
        super().start()
        self.start_server()
        return {"MLFLOW_TRACKING_URI": self.proxy.url, "NO_PROXY": "127.0.0.1,localhost"}

    def stop(self) -> None:
        self.proxy.close()
        self.kill_server(signal.SIGTERM)

    def fail(self, fault: Fault | None) -> None:
        self.proxy.fault = fault

    def change_login(self, *, is_new: bool) -> Mapping[str, str]:
        self.proxy.authorization = f"Bearer {_TOKEN}" if is_new else None
        return {"MLFLOW_TRACKING_TOKEN": _TOKEN}

    def start_server(self) -> None:
        """Start the server on the database as it is, and wait until it answers.

        Raises:
            RuntimeError: It ends, or does not answer in time; with the end of its log.
        """
        options = {
            "backend-store-uri": self._database,
            "artifacts-destination": str(self.folder / "files"),
            "host": "127.0.0.1",
            "port": str(self._port),
            "workers": "1",
        }
        command = [sys.executable, "-m", "mlflow", "server"]
        command += [word for name, value in options.items() for word in (f"--{name}", value)]
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        environment.pop("MLFLOW_TRACKING_URI", None)
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(f"{self.uri}/health"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill_server(signal.SIGKILL)
                raise RuntimeError(f"mlflow server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server and its workers; the database and files stay."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        except ProcessLookupError:
            process.wait()


def read_run(client: MlflowClient, run_id: str) -> Shown:
    """What MLflow shows of a run, with the names of the journal.

    Raises:
        MlflowException: There is no such run.
    """
    run = client.get_run(run_id)
    files = _files(client, run_id)
    names = orjson.loads(files.get(RENAMED_FILE, b"{}"))
    metrics, paths, images = (
        {spelled: name for name, spelled in names.get(kind, {}).items()} for kind in ("metrics", "files", "images")
    )
    shown = Shown(status=run.data.tags.get(STATUS))
    for name in run.data.metrics:
        shown.points[metrics.get(name, name)] = _points(client, run_id, name)
    if CONFIG_FILE in files:
        shown.config = _config(run, files[CONFIG_FILE].decode())
    _read_files(shown, files, paths, images)
    return shown


def _points(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    history = client.get_metric_history(run_id, name)
    return [(point.step, _value(point.value)) for point in sorted(history, key=lambda point: point.timestamp)]


def _value(stored: float) -> float:
    return stored if abs(stored) < _INFINITE else stored * 2


def _config(run: Run, text: str) -> dict[str, Any]:
    """The settings of the file, where the params (and tags for what changed later) say the same."""
    spelling, shown = metric_spelling(), {}
    for key, value in flatten(yaml.safe_load(text)).items():
        name = spelling(key)
        told = run.data.tags.get(CONFIG_CHANGED + name, run.data.params.get(name))
        shown[key] = value if told == param_text(value) else told
    return shown


def _files(client: MlflowClient, run_id: str) -> dict[str, bytes]:
    """All files of the run, by their path there."""
    files, unread = {}, [""]
    while unread:
        for file in client.list_artifacts(run_id, unread.pop() or None):
            if file.is_dir:
                unread.append(file.path)
                continue
            with tempfile.TemporaryDirectory() as folder:  # each in its own: names of different folders are alike
                files[file.path] = Path(client.download_artifacts(run_id, file.path, folder)).read_bytes()
    return files


def _read_files(shown: Shown, files: Mapping[str, bytes], paths: Mapping[str, str], images: Mapping[str, str]) -> None:
    for file, content in sorted(files.items()):
        kind, _, rest = file.partition("/")
        folder, _, last = rest.rpartition("/")
        name = paths.get(folder, folder)
        if kind == "images":
            if file.endswith(".png"):
                key, _, number = rest.partition("+step+")
                key = key.replace("~", "/")
                shown.images.add((images.get(key, key), int(number.partition("+")[0])))
        elif kind in ("texts", "tables", "histograms"):
            _read_step(shown, kind, name, int(last.removeprefix("step_").partition(".")[0]), content)
        elif kind != RENAMED_FILE and not file.startswith("alerts"):
            names = [file, *(str(folder) for folder in PurePosixPath(file).parents[:-1])]
            shown.artifacts.update(paths.get(name, name) for name in names)
    # A picture of a distribution is no image of the user's.
    shown.images -= {(f"histograms/{tag}", step) for tag, steps in shown.histograms.items() for step in steps}
    for page in sorted((file for file in files if file.startswith("alerts")), key=lambda file: (len(file), file)):
        shown.alerts += read_alerts(files[page].decode())


def _read_step(shown: Shown, kind: str, name: str, step: int, content: bytes) -> None:
    if kind == "texts":
        shown.texts.setdefault(name, {})[step] = content.decode()
    elif kind == "tables":
        shown.tables.setdefault(name, {})[step] = orjson.loads(content)["data"]
    else:
        shown.histograms.setdefault(name, {})[step] = orjson.loads(content)["count"]


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=1) as response:
            return response.status == 200
    except (URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
