"""MLflow: a server, or a database file on this machine.

Written with `MlflowClient` and the run's own id alone, never with the active run of a thread. Everything that is sent
twice is there once: MLflow itself knows a metric by its time, which is that of the record, and a file by its path.
What MLflow cannot do is forget points, so a run that goes back becomes a new MLflow run, with the old one below it.
"""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import yaml

from verl.tracking.backends.mlflow_alerts import AlertPages
from verl.tracking.backends.mlflow_batches import METRICS_PER_REQUEST, Point, send_metrics, send_params
from verl.tracking.backends.mlflow_names import (
    image_spelling,
    json_text,
    metric_spelling,
    param_text,
    path_spelling,
    storable,
)
from verl.tracking.backends.mlflow_notes import NameList, note_block, with_block
from verl.tracking.backends.mlflow_pictures import draw_histogram, histogram_facts, image_file, preview
from verl.tracking.backends.mlflow_preflight import mlflow_checks
from verl.tracking.backends.mlflow_run import end_run, open_run, set_tags, source_tags
from verl.tracking.backends.mlflow_server import (
    GoneError,
    MlflowServer,
    MlflowTroubleError,
    RefusedError,
    set_package_defaults,
    tracking_uri,
)
from verl.tracking.config_text import flatten
from verl.tracking.logger import (
    AlertLevel,
    Artifact,
    Check,
    Histogram,
    Limits,
    NewBranchError,
    RunStatus,
    TrackedRun,
    TrainerLogger,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

LARGEST_ARTIFACT_BYTES = 200 * 1024 * 1024
"""Larger files and folders stay where they are: a checkpoint would keep metrics waiting for minutes."""

CONFIG_FILE = "config.yaml"
CONFIG_CHANGED = "config_changed."
NOTE = "mlflow.note.content"
ALERTS = "verl.alerts"
_TABLES, _HAS_IMAGES = "mlflow.loggedArtifacts", "mlflow.loggedImages"
_LONGEST_TABLE_LIST = 4000


class MlflowLogger(TrainerLogger):
    """Logs to a run of MLflow (3.1 or later)."""

    shows: ClassVar[frozenset[str]] = frozenset(
        {"metrics", "config", "text", "histogram", "table", "image", "artifact", "alert", "rewind", "status"}
    )
    limits: ClassVar[Limits] = Limits(open=120.0, call=120.0, finish=120.0)

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        return mlflow_checks()

    def open(self, run: TrackedRun) -> None:
        set_package_defaults()
        state = run.state
        self._run = run
        self._names, self._paths, self._images = metric_spelling(), path_spelling(), image_spelling()
        self._points: list[Point] = []
        self._tags: dict[str, str] = {}
        self._alerts = AlertPages.from_state(state.get("alerts") or {})
        self._tables = [str(path) for path in state.get("tables") or ()]
        self._has_source = bool(state.get("has_source"))
        self._flushed_alerts = self._alerts.to_state()
        self._server = MlflowServer(tracking_uri(state.get("uri")))
        remote = self._opened()
        self._remote_id, self._experiment_id = remote.info.run_id, remote.info.experiment_id
        self._name_list = NameList(self._server, self._remote_id, int(state.get("renamed") or 0))
        self._sent_tags = remote.data.tags
        self._write_note(remote.data.tags.get(NOTE, ""))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        time_ms = self._time_ms()
        for key, value in metrics.items():
            self._points.append(Point(key, Metric(self._names(key), float(value), time_ms, step)))
            if len(self._points) >= METRICS_PER_REQUEST:
                self._send_points()

    def log_config(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        with self._server.asked_to("read the params") as client:
            data = client.get_run(self._remote_id).data
        new: dict[str, Param] = {}
        for key, value in flatten(config).items():
            name, text = self._names(key), param_text(value)
            known = data.params.get(name)
            if known is None:
                new[key] = Param(name, text)
            elif CONFIG_CHANGED + name in data.tags or known != text:
                self._tags[CONFIG_CHANGED + name] = text  # a param never changes
        send_params(self._server, self._remote_id, new, self.leave_out)
        self._put_text(_yaml(config), CONFIG_FILE)

    def log_text(self, tag: str, text: str, step: int) -> None:
        self._put_text(text, f"texts/{self._paths(tag)}/{_step_name(step)}.md")

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        path = f"tables/{self._paths(name)}/{_step_name(step)}.json"
        data = [[_cell(cell) for cell in row] for row in rows]
        self._put_text(json_text({"columns": list(columns), "data": data}), path)
        # Those in this list are shown as tables; it is as long as a tag can be.
        self._tables = [known for known in self._tables if known != path] + [path]
        while len(_table_list(self._tables)) > _LONGEST_TABLE_LIST:
            del self._tables[0]
        self._tags[_TABLES] = _table_list(self._tables)

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        facts = histogram_facts(histogram)
        self._put_text(json_text(facts), f"histograms/{self._paths(tag)}/{_step_name(step)}.json")
        if picture := draw_histogram(tag, histogram, step):
            self._put_image(f"histograms/{tag}", picture, step)

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        try:
            if artifact.type == "image":
                self._put_image(artifact.name, artifact.path.read_bytes(), step)
                return
            size = _size(artifact.path)
            if size <= LARGEST_ARTIFACT_BYTES:
                self._put(artifact.path, self._artifact_name(artifact))
                return
            reason = f"{size / 2**20:.0f} MiB, and at most {LARGEST_ARTIFACT_BYTES // 2**20} MiB are sent"
        except FileNotFoundError:
            reason = f"{artifact.path.name} does not exist any more"
        except RefusedError as error:  # such as for the name of a file in a folder
            reason = str(error)
        self.leave_out(artifact.name, step, reason)

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        if self._alerts.is_full:
            self._put_alerts()
            self._alerts.turn()
        self._alerts.add(title, text, level, self.moment.time)

    def purge(self, to_step: int) -> None:
        raise NewBranchError(f"MLflow cannot forget what it has after step {to_step}")

    def flush(self) -> None:
        self._send_points()
        if self._alerts.to_state() != self._flushed_alerts:
            self._put_alerts()
            self._tags[ALERTS] = str(self._alerts.warnings)
            self._write_note()
            self._flushed_alerts = self._alerts.to_state()
        spellings = {"metrics": self._names, "files": self._paths, "images": self._images}
        if self._name_list.update({kind: spelling.renamed for kind, spelling in spellings.items()}):
            self._write_note()
        if not self._has_source and (source := source_tags(self._run.directory)):
            self._tags |= source
            self._has_source = True
        self._send_tags()

    def state(self) -> dict[str, Any]:
        return {
            "uri": self._server.shown,
            "experiment_id": self._experiment_id,
            "run_id": self._remote_id,
            "alerts": self._alerts.to_state(),
            "tables": list(self._tables),
            "has_source": self._has_source,
            "renamed": self._name_list.count,
        }

    def ids(self) -> dict[str, Any]:
        ids = {"run_id": self._remote_id, "experiment_id": self._experiment_id, "tracking_uri": self._server.shown}
        return ids | {"url": self.where()} if self._is_http else ids

    def renamed(self) -> dict[str, str]:
        return {**self._images.renamed, **self._paths.renamed, **self._names.renamed}

    def where(self) -> str:
        if self._is_http:
            # Without the last part MLflow 3 may open its pages about traces, which are empty.
            page = f"#/experiments/{self._experiment_id}/runs/{self._remote_id}?workflowType=machine_learning"
            return f"{self._server.shown.rstrip('/')}/{page}"
        return f"mlflow ui --backend-store-uri {shlex.quote(self._server.shown)}"

    def finish(self, status: RunStatus) -> None:
        self.flush()
        end_run(self._server, self._remote_id, status, self._time_ms())
        self.close()

    def close(self) -> None:
        self._points = []

    def _opened(self) -> Run:
        try:
            return open_run(self._server, self._run)
        except GoneError as error:
            if self._run.state:
                raise
            raise MlflowTroubleError(str(error)) from None

    def _send_points(self) -> None:
        send_metrics(self._server, self._remote_id, self._points, self.leave_out)
        self._points.clear()

    def _send_tags(self) -> None:
        tags = {key: text for key, text in self._tags.items() if self._sent_tags.get(key) != text}
        set_tags(self._server, self._remote_id, tags)
        self._sent_tags |= tags
        self._tags.clear()

    def _put_text(self, text: str, path: str) -> None:
        with self._server.asked_to(f"store {path}") as client:
            client.log_text(self._remote_id, storable(text), path)

    def _put(self, source: Path, path: str) -> None:
        """Store a file or folder under another name than it has here."""
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as place, self._server.asked_to(f"store {path}") as client:
            link = Path(place, name)
            link.symlink_to(source.resolve(strict=True))
            client.log_artifact(self._remote_id, str(link), folder or None)

    def _put_image(self, tag: str, png: bytes, step: int) -> None:
        path = image_file(self._remote_id, self._images(tag), step, self._time_ms())
        small = preview(png)
        with tempfile.TemporaryDirectory() as place:
            for ending, content in ((".png", png), ("+compressed.webp", small)):
                if content is not None:
                    file = Path(place, f"image{ending}")
                    file.write_bytes(content)
                    self._put(file, path + ending)
        self._tags[_HAS_IMAGES] = "True"

    def _put_alerts(self) -> None:
        self._put_text(self._alerts.text, self._alerts.file)

    def _artifact_name(self, artifact: Artifact) -> str:
        name, ending = self._paths(artifact.name), artifact.path.suffix
        if not name.endswith(ending):  # MLflow shows a file by its ending
            name += ending
            self._paths.renamed[artifact.name] = name
        return name

    def _write_note(self, description: str | None = None) -> None:
        """Bring the description up to date; what people have written there stays."""
        if description is None:
            with self._server.asked_to("read the description") as client:
                description = client.get_run(self._remote_id).data.tags.get(NOTE, "")
        note = with_block(description, note_block(self._run, self._alerts, self._name_list.count))
        if note is not None:
            set_tags(self._server, self._remote_id, {NOTE: note})

    @property
    def _is_http(self) -> bool:
        return self._server.uri.startswith(("http://", "https://"))

    def _time_ms(self) -> int:
        return max(0, int((self.moment.time or time.time()) * 1000))


def _step_name(step: int) -> str:
    return f"step_{step:06d}"


def _cell(value: Any) -> Any:
    """A cell of a table; what JSON has no number for is shown as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _table_list(paths: Sequence[str]) -> str:
    return json_text([{"path": path, "type": "table"} for path in paths])


def _yaml(config: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError:  # a type that YAML does not know
        return yaml.safe_dump(orjson.loads(json_text(config)), sort_keys=False, allow_unicode=True)


def _size(path: Path) -> int:
    """Bytes of a file or of all files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
