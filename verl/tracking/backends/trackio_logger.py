"""trackio: a database per project on this machine, shown by `trackio show`.

Rows are written through trackio's own storage, each with an id, a step and a time from the journal: trackio ignores a
row whose id it has, so what is delivered twice is there once. `trackio.log` is no way to do that: it makes ids and
times of its own, asks the hub who the user is, writes in a thread, and drops what could not be written.

When training goes back, the run is deleted and written again from the journal. On a network disk trackio takes rows
from an inbox of files, which gives nothing back; there a new run begins, and the old one is marked as superseded.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from verl.config.environment import trackio_folder, variable
from verl.errors import ConfigError
from verl.tracking.backends.trackio_storage import Alert, Row, TrackioStorage, disk_trouble, plain
from verl.tracking.logger import (
    AlertLevel,
    Artifact,
    Check,
    Histogram,
    Moment,
    NewBranchError,
    RunStatus,
    StateLostError,
    TrackedRun,
    TrainerLogger,
)
from verl.tracking.spelling import Spelling

STATUS_KEY = "verl_status"
"""Where trackio shows how the run ended: in its configuration, for it knows no status."""

# Names that trackio keeps to itself (their first letter is spelled out), and what JSON has no place for.
_FORBIDDEN_KEY = re.compile(r"\A(?=(?:project|run|timestamp|step|time|metrics)\Z).|\A_(?=_)|[\ud800-\udfff]")
# All other names stay as they are, but for those that look as if they were spelled.
_ODD_KEY = re.compile(rf"{_FORBIDDEN_KEY.pattern}|_x[0-9a-f]+_|_h[0-9a-f]{{16}}_")
_FORBIDDEN_IN_ARTIFACT = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_KEY = 2000
_LONGEST_ARTIFACT = 150
_LEVELS: Mapping[AlertLevel, str] = {"info": "info", "warning": "warn", "error": "error"}


class TrackioLogger(TrainerLogger):
    """Writes to trackio's database on this machine: no server, no network, no thread."""

    shows: ClassVar[frozenset[str]] = frozenset(
        {"metrics", "config", "text", "histogram", "table", "image", "artifact", "alert", "rewind", "status"}
    )

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        checks = [_check_folder()]
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            if variable(name):
                found = f"{name} is set, but verl writes trackio's runs on this machine."
                checks.append(Check("place", "warning", found, "Upload them later: trackio sync --project NAME."))
        return checks

    def open(self, run: TrackedRun) -> None:
        self._run = run
        self._keys = Spelling(_FORBIDDEN_KEY, _LONGEST_KEY)
        self._artifact_names = Spelling(_FORBIDDEN_IN_ARTIFACT, _LONGEST_ARTIFACT)
        self._rows: list[Row] = []
        self._alerts: list[Alert] = []
        self._config: dict[str, Any] = dict(run.state.get("config", {}))
        self._last_id = str(run.state.get("last_id", ""))
        self._status = "running"
        self._is_config_new = run.state.get("status") != self._status
        self._latest, self._calls = Moment(), 0
        with disk_trouble():
            self._store = TrackioStorage(run)
            if not run.state:
                self._store.delete()
            elif not self._store.has(self._last_id):
                raise StateLostError(f"trackio's run {self._store.name!r} has not all that was written to it")

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._add(step, {self._key(key): value for key, value in metrics.items()})

    def log_config(self, config: dict[str, Any]) -> None:
        self._config, self._is_config_new = plain(config), True

    def log_text(self, tag: str, text: str, step: int) -> None:
        self._add(step, {self._key(tag): {"_type": "trackio.markdown", "_value": plain(text)}})

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        edges = [min(histogram.minimum, *histogram.bucket_limits), *histogram.bucket_limits]
        shown = {"_type": "trackio.histogram", "bins": edges, "values": histogram.bucket_counts}
        self._add(step, {self._key(tag): shown})

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        titles = _distinct(columns)
        cells = [dict(zip(titles, plain(row), strict=False)) for row in rows]
        self._add(step, {self._key(name): {"_type": "trackio.table", "_value": cells}})

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        if artifact.type == "hparams":
            given = {**artifact.metadata["hparams"], **artifact.metadata["metrics"]}
            self.log_table(artifact.name, ["name", "value"], list(given.items()), step)
        elif not artifact.path.exists():
            self.leave_out(artifact.name, step, f"{artifact.path} is not there any more")
        elif artifact.type == "image":
            log_id = self._next_id()
            with disk_trouble():
                place = self._store.save_image(artifact.path, step, log_id)
            image = {"_type": "trackio.image", "file_path": place, "caption": plain(artifact.name)}
            self._add(step, {self._key(artifact.name): image}, log_id)
        else:
            name = f"run-{self._run.remote_id}-{self._artifact_names(artifact.name)}"
            try:
                with disk_trouble():
                    self._store.commit(artifact, name)
            except ValueError as error:
                self.leave_out(artifact.name, step, str(error))

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        title, text = plain(title), plain(text)
        is_of_record = bool(self.moment.time) and self.moment is not self._latest
        alert_id = self._next_id()
        if not is_of_record:  # how the run ended is told without a record, and may be told again by another process
            digest = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
            alert_id = f"{self._run.remote_id}.{self._run.attempt}.end.{digest}"
        shown, more = (title, text) if title else (text, None)
        self._alerts.append(Alert(shown, more, _LEVELS[level], _iso(self.moment.time), alert_id))

    def purge(self, to_step: int) -> None:
        if self._store.is_inbox:
            self._status, self._is_config_new = "superseded", True
            self.flush()
            raise NewBranchError("trackio's inbox gives back nothing")
        with disk_trouble():
            stored = self._store.last_step()
        steps = [row.step for row in self._rows] + ([] if stored is None else [stored])
        if steps and max(steps) > to_step:
            raise StateLostError(f"trackio's run is written anew, as training goes on from step {to_step}")

    def flush(self) -> None:
        with disk_trouble():
            # Alerts first: a database that has the last row then has all of them.
            self._store.add_alerts(self._alerts)
            self._alerts = []
            if self._is_config_new:
                begin = Row(0, _iso(self.moment.time), f"{self._run.remote_id}.begin", {})
                shown = {STATUS_KEY: self._status, "verl_run_id": self._run.run_id}
                # Known rows are ignored, the configuration that comes with them is not.
                self._store.add_rows([begin], self._config | shown)
                self._last_id = self._last_id or begin.log_id
                self._is_config_new = False
            if self._rows:
                self._store.add_rows(self._rows)
                self._last_id = self._rows[-1].log_id
                self._rows = []

    def state(self) -> dict[str, Any]:
        return {"last_id": self._last_id, "status": self._status, "config": self._config}

    def ids(self) -> dict[str, Any]:
        return {"run_id": self._run.remote_id, "project": self._store.project, "run_name": self._store.name}

    def renamed(self) -> dict[str, str]:
        return self._keys.renamed | self._artifact_names.renamed

    def where(self) -> str:
        folder = variable("TRACKIO_DIR")
        setting = "" if folder is None else f"TRACKIO_DIR={shlex.quote(folder)} "
        return f"{setting}trackio show --project {shlex.quote(self._store.project)}"

    def finish(self, status: RunStatus) -> None:
        self._status, self._is_config_new = status, True
        self.flush()

    def _key(self, name: str) -> str:
        is_odd = not 0 < len(name) <= _LONGEST_KEY or _ODD_KEY.search(name)
        return self._keys(name) if is_odd else name

    def _add(self, step: int, values: dict[str, Any], log_id: str | None = None) -> None:
        self._rows.append(Row(step, _iso(self.moment.time), log_id or self._next_id(), values))

    def _next_id(self) -> str:
        """The same for the same record, whoever delivers it."""
        self._latest, self._calls = self.moment, self._calls + 1 if self.moment is self._latest else 0
        name = f"{self._run.remote_id}.{self.moment.attempt}.{self.moment.seq}"
        return f"{name}.{self._calls}" if self._calls else name


def _distinct(columns: Sequence[str]) -> list[str]:
    """trackio's tables have rows of names: the second `score` becomes `score (2)`."""
    titles: list[str] = []
    for column in map(plain, columns):
        title, number = column, 1
        while title in titles:
            number += 1
            title = f"{column} ({number})"
        titles.append(title)
    return titles


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC) if seconds else datetime.now(UTC)
    return moment.isoformat(timespec="microseconds")


def _check_folder() -> Check:
    try:
        folder = trackio_folder()
    except ConfigError as error:
        return Check("folder", "error", str(error), "Set TRACKIO_DIR to a folder.")
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Check("folder", "ok", f"trackio's folder is {folder}.")
    found = f"trackio's folder {folder} cannot be written ({there})."
    return Check("folder", "error", found, "Set TRACKIO_DIR to a folder that can.")
