"""trackio's storage on this machine, for one run: the one place that imports trackio, when a run is opened."""

from __future__ import annotations

import errno
import math
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl.tracking.logger import Artifact, TrackedRun

_LONGEST_PROJECT = 100
_NAMED_BY_PLACE = ("checkpoint", "model")  # not copied: they are large
_DISK_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}


@dataclass(frozen=True, slots=True)
class Row:
    """What trackio shows of one record.

    Attributes:
        step: Step. time: ISO 8601. log_id: Identity: another row with it is ignored.
        values: Metrics, or trackio's own forms of text, tables, histograms and images.
    """

    step: int
    time: str
    log_id: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of trackio.

    Attributes:
        title: Title. text: What more there is to say. level: info, warn or error.
        time: ISO 8601. alert_id: Identity: another alert with it is ignored.
    """

    title: str
    text: str | None
    level: str
    time: str
    alert_id: str


class TrackioStorage:
    """trackio's storage for one run.

    Attributes:
        project: Name under which trackio has the project. name: Name of the run, perhaps changed by the user.
        is_inbox: trackio takes rows from files later, as on a network disk.
    """

    def __init__(self, run: TrackedRun) -> None:
        from trackio import cas, fragments, utils
        from trackio.media import get_project_media_path
        from trackio.sqlite_storage import SQLiteStorage

        self._storage, self._utils, self._cas, self._fragments = SQLiteStorage, utils, cas, fragments
        self._media_path = get_project_media_path
        self._id = run.remote_id
        self.project = self._allowed(utils.canonical_project_name(run.project))
        self.is_inbox = utils.get_storage_mode() == "jsonl"
        # trackio reads the inbox in the order of names; the last configuration must be the newest.
        self._inbox = fragments.FragmentWriter(f"{self._id}.{time.time_ns()}")
        known = [record for record in SQLiteStorage.get_run_records(self.project) if record["id"] == self._id]
        self.name = str(known[-1]["name"]) if known else plain(run.experiment)

    def _allowed(self, project: str) -> str:
        """trackio has no projects whose files would be mistaken for those of others."""
        project = project[:_LONGEST_PROJECT]
        try:
            self._storage.validate_project_name(project)
        except ValueError:
            return f"verl-{project}-runs"
        return project

    def has(self, log_id: str) -> bool:
        """Whether a row is there, as far as can be known."""
        if self.is_inbox:
            return True
        try:
            quoted = log_id.replace("'", "''")
            query = f"SELECT 1 FROM metrics WHERE log_id = '{quoted}'"
            return bool(self._storage.query_project(self.project, query)["rows"])
        except FileNotFoundError:
            return False

    def last_step(self) -> int | None:
        """Highest step of the rows that are there."""
        return self._storage.get_last_step(self.project, run_id=self._id)

    def delete(self) -> None:
        """Make sure that nothing is left of an earlier beginning."""
        if self.is_inbox:
            return
        self._storage.delete_run(self.project, self.name, run_id=self._id)
        if self._storage.get_log_count(self.project, run_id=self._id):
            raise OSError(errno.EIO, f"trackio did not delete its run {self.name!r}")
        for image in self._utils.project_media_dir(self.project).glob(f"*/*/{self._id}.*.png"):
            image.unlink()

    def add_rows(self, rows: Sequence[Row], config: dict[str, Any] | None = None) -> None:
        """Store at least one row, and the configuration; rows that are there are ignored."""
        run = {"project": self.project, "run": self.name, "run_id": self._id}
        if self.is_inbox:
            entries = [
                {**run, "metrics": row.values, "step": row.step, "timestamp": row.time, "log_id": row.log_id}
                for row in rows
            ]
            entries[0]["config"] = config
            self._inbox.write_local([self._fragments.metric_record(entry) for entry in entries])
            return
        self._storage.bulk_log(
            **run,
            metrics_list=[row.values for row in rows],
            steps=[row.step for row in rows],
            timestamps=[row.time for row in rows],
            log_ids=[row.log_id for row in rows],
            config=config,
        )

    def add_alerts(self, alerts: Sequence[Alert]) -> None:
        """Store alerts; those that are there are ignored."""
        if not alerts:
            return
        run = {"project": self.project, "run": self.name, "run_id": self._id}
        if self.is_inbox:
            entries = [{**run, **asdict(alert), "step": None, "timestamp": alert.time} for alert in alerts]
            self._inbox.write_local([self._fragments.alert_record(entry) for entry in entries])
            return
        self._storage.bulk_alert(
            **run,
            titles=[alert.title for alert in alerts],
            texts=[alert.text for alert in alerts],
            levels=[alert.level for alert in alerts],
            steps=[None for _ in alerts],
            timestamps=[alert.time for alert in alerts],
            alert_ids=[alert.alert_id for alert in alerts],
        )

    def save_image(self, source: Path, step: int, log_id: str) -> str:
        """Copy an image to where trackio keeps those of the run; gives the place as rows name it."""
        is_plain_name = re.fullmatch(r"[\w-][\w. -]{0,100}", self.name)
        folder = self._media_path(self.project, run=self.name if is_plain_name else self._id, step=step)
        target = folder / f"{log_id}.png"
        temporary = target.with_suffix(".tmp")
        shutil.copyfile(source, temporary)
        temporary.replace(target)
        return target.relative_to(self._utils.MEDIA_DIR).as_posix()

    def commit(self, artifact: Artifact, name: str) -> None:
        """Store files as an artifact of the run; content that trackio has already makes no new version.

        Raises:
            ValueError: trackio cannot have it.
        """
        manifest = [self._entry(artifact, file, path) for path, file in _files(artifact.path)]
        if not manifest:
            raise ValueError("the folder has no files")
        self._storage.commit_artifact_version(
            project=self.project,
            name=name,
            type=plain(artifact.type),
            description=None,
            manifest=manifest,
            metadata=plain(artifact.metadata),
            aliases=None,
            run_name=self.name,
            run_id=self._id,
        )

    def _entry(self, artifact: Artifact, file: Path, path: str) -> Any:
        self._cas.validate_logical_path(path)
        if artifact.type in _NAMED_BY_PLACE:
            place = file.resolve().as_uri()
            return {"path": path, "ref": place, "digest": place, "size": file.stat().st_size}
        digest, size = self._cas.stage_blob_into_project(file, self.project)
        return {"path": path, "digest": digest, "size": size}


@contextmanager
def disk_trouble() -> Iterator[None]:
    """A database that cannot be written is no record's fault; who feeds a tracker knows by the error's number."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise OSError(_DISK_ERRORS.get(code, errno.EIO), f"trackio's database: {error}") from error
    except OSError as error:
        if error.errno is None:  # its lock is taken
            raise OSError(errno.EIO, str(error)) from error
        raise


def _files(path: Path) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(path.name, path)]
    found = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    return sorted((file.relative_to(path).as_posix(), file) for file in found)


def plain(value: Any) -> Any:
    """What JSON can hold: lone surrogates and numbers that are not finite become readable text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bool | float) or value is None or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return str(value)
