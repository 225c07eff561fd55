"""SwanLab: one experiment per run, online or in files for `swanlab sync`.

Online, `flush` returns when the server has acknowledged everything, and raises otherwise; nothing waits in a queue.
After a failure the tracker is opened again and asks the server for the last step of each key: what arrived without
having been acknowledged is recognised by that and not sent twice. SwanLab keeps the first value of a (key, step) and
cannot forget, so a rewind, or a point of which nobody can tell whether it arrived, begins a new experiment in the same
group.

Offline the SDK can only write whole files: the run is written anew when it is opened again, and the old files move
aside.
"""

from __future__ import annotations

import logging
import math
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from verl.config.environment import variable
from verl.tracking.backends import swanlab_charts as charts
from verl.tracking.backends import swanlab_login
from verl.tracking.logger import (
    AlertLevel,
    Artifact,
    Check,
    Embedding,
    Histogram,
    Limits,
    NewBranchError,
    RunStatus,
    StateLostError,
    TrackedRun,
    TrainerLogger,
)

if TYPE_CHECKING:
    from verl.tracking.backends.swanlab_run import SwanlabRun

log = logging.getLogger("verl.tracking")

FOLDER = "swanlog"
SUPERSEDED = "superseded"
OWN_SECTION = "verl"
"""Section of the configuration in which this tracker says whose run it is and how it ended."""
LARGEST_FILE = 100 * 1024 * 1024
LARGEST_STEP = 1 << 48
_LOOKS = (0.0, 0.5, 1.5, 4.0)
"""Seconds to wait before each look at what the server has: it may count later than it acknowledges."""
_TOO_LARGE = "larger than the 10 MB that SwanLab shows"


class SwanlabLogger(TrainerLogger):
    """Logs to SwanLab by its own package, from one thread."""

    shows: ClassVar[frozenset[str]] = frozenset(
        {"metrics", "config", "text", "histogram", "table", "image", "artifact", "alert", "rewind", "status"}
    )
    limits: ClassVar[Limits] = Limits(open=120.0, call=90.0, finish=150.0)

    def __init__(self) -> None:
        self._sdk: SwanlabRun | None = None
        self._run: TrackedRun | None = None
        self._spell = charts.key_spelling()
        self._spell_file = charts.file_spelling()
        self._mode = "disabled"
        self._where = ""
        self._ids: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._alerts = 0
        self._steps: dict[str, int] = {}  # last step with a finite value, of each key
        self._values: dict[str, tuple[int, float]] = {}
        self._highest = -1  # step of the run
        self._renamed_before: dict[str, str] = {}  # by earlier processes

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        return swanlab_login.look()

    def open(self, run: TrackedRun) -> None:
        from verl.tracking.backends import swanlab_run

        self._run = run
        self._mode = swanlab_run.current_mode()
        self._take_state(run.state, self._mode)
        if self._mode == "disabled":
            return
        project, folder = charts.project_spelling()(run.project), _folder(run)
        if self._mode != "online":
            _move_aside(folder, f"run-{run.run_id}")
        self._sdk = sdk = swanlab_run.SwanlabRun.begin(
            swanlab_run.RunRequest(
                identity=run.remote_id,
                project=project,
                name=_name(run),
                group=run.run_id,
                description=f"Run {run.run_id} of verl",
                folder=folder,
                config=self._full_config("running"),
            )
        )
        place = {"url": sdk.url} if sdk.url else {"directory": str(sdk.path)}
        self._ids = {"run_id": run.remote_id, "project": project, **place}
        self._where = sdk.url or f"swanlab sync --id {run.remote_id} {shlex.quote(str(sdk.path))}"
        try:
            self._meet_server(run)
        except BaseException:
            self.close()
            raise

    def _take_state(self, state: Mapping[str, Any], mode: str) -> None:
        if not state:
            return
        if state["mode"] != mode:
            raise StateLostError(f"SwanLab is {mode} now and was {state['mode']} before")
        if mode not in ("online", "disabled"):
            raise StateLostError("SwanLab cannot continue the files of an offline run")
        self._config, self._alerts = dict(state["config"]), int(state["alerts"])
        self._highest, self._renamed_before = int(state["highest"]), dict(state["renamed"])
        self._steps = {key: int(step) for step, keys in state["steps"].items() for key in keys}

    def _meet_server(self, run: TrackedRun) -> None:
        """Make sure that the server has what it acknowledged, and that the experiment before this one is ended."""
        sdk = self._online()
        if sdk is None:
            return
        if any(sdk.first_open_step(key) <= step for key, step in self._steps.items()) and (lost := self._missing(sdk)):
            raise StateLostError(f"the server lacks what it acknowledged, such as {lost}")
        if (older := run.superseded_remote_id) and not run.state:
            try:
                sdk.end_other(older)
            except ConnectionError as error:
                log.warning("swanlab: %s is replaced by %s, but was not marked: %s", older, run.remote_id, error)

    def _missing(self, sdk: SwanlabRun) -> str | None:
        """A key whose last acknowledged step the server does not have."""
        missing: str | None = None
        for wait in _LOOKS:
            time.sleep(wait)
            latest = sdk.latest_steps()
            missing = next(
                (f"{key!r} at step {step}" for key, step in self._steps.items() if latest.get(key, -1) < step), None
            )
            if missing is None:
                break
        return missing

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        sdk = self._sdk
        if sdk is None:
            return
        new: dict[str, float] = {}
        self._highest = max(self._highest, step)
        for name, value in metrics.items():
            key = self._spell(name)
            if not self._is_new(sdk, name, key, step, value):
                continue
            new[key] = value
            if math.isinf(value):
                self.leave_out(name, step, f"{value} is shown as NaN: SwanLab has no infinity")
        sdk.log_scalars(new, step, self.moment.time)

    def _is_new(self, sdk: SwanlabRun, name: str, key: str, step: int, value: float | None = None) -> bool:
        """Whether SwanLab lacks this point.

        Raises:
            NewBranchError: Nobody can tell.
        """
        if not 0 <= step <= LARGEST_STEP:
            self.leave_out(name, step, f"SwanLab has no step {step}")
            return False
        last = self._steps.get(key, -1)
        is_there = step < sdk.first_open_step(key)
        if sdk.has(key, step) or (is_there and step == last):
            if value is None or not _same(self._values.get(key), step, value):
                self.leave_out(name, step, "SwanLab keeps the first value of a step, and this is another one")
            return False
        if is_there and step < last:
            self._begin_anew(f"{name!r} comes for step {step} after step {last}, and SwanLab may have it or not")
        if value is None or math.isfinite(value):
            self._steps[key] = max(step, last)
        if value is not None:
            self._values[key] = (step, value)
        return not is_there

    def log_config(self, config: dict[str, Any]) -> None:
        self._config = config
        if self._sdk:
            self._sdk.set_config(self._full_config("running"))

    def _full_config(self, status: str) -> dict[str, Any]:
        assert self._run is not None
        own = {"run_id": self._run.run_id, "attempt": self._run.attempt, "status": status}
        return {**self._config, OWN_SECTION: own}

    def log_text(self, tag: str, text: str, step: int) -> None:
        import swanlab

        self._log_media(tag, "text", swanlab.Text(charts.writable(text)), step)

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        import swanlab

        chart: Any = charts.histogram_chart(histogram)
        self._log_media(tag, "histogram", swanlab.ECharts(chart), step)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        import swanlab

        chart: Any = charts.table_chart(columns, rows)
        self._log_media(name, "table", swanlab.ECharts(chart), step)

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        if self._sdk:
            self.leave_out(embedding.tag, step, "SwanLab shows no embeddings")

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        import swanlab

        if artifact.type == "image":
            self._log_media(artifact.name, "image", swanlab.Image(str(artifact.path)), step)
        elif artifact.type != "hparams" and self._sdk:
            self._log_files(self._sdk, artifact, step)

    def _log_files(self, sdk: SwanlabRun, artifact: Artifact, step: int) -> None:
        path = artifact.path
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files)
        if size > LARGEST_FILE:
            self.leave_out(artifact.name, step, f"its {size >> 20} MB are more than the 100 MB that are uploaded")
            return
        name = self._spell_file(artifact.name)
        if path.is_dir():
            for file in files:
                sdk.log_file(f"{name}/{file.relative_to(path).as_posix()}", file)
            return
        if Path(name).suffix != path.suffix:  # by which people and programs know what it is
            name = self._spell_file.renamed[artifact.name] = name + path.suffix
        sdk.log_file(name, path)

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        import swanlab

        # Alerts have no step; their number keeps them apart.
        self._alerts += 1
        heading = f"**{level.upper()}**" + (f" {title}" if title else "")
        self._log_media(
            "run",
            "notes" if level == "info" else "alerts",
            swanlab.Text(charts.writable(f"{heading}\n\n{text}")),
            self._alerts,
        )

    def _log_media(self, name: str, kind: str, value: Any, step: int) -> None:
        sdk = self._sdk
        if sdk is None:
            return
        key = charts.of_kind(self._spell(name), kind)
        if kind not in charts.KINDS_WITHOUT_STEPS:
            self._highest = max(self._highest, step)
        if self._is_new(sdk, name, key, step) and not sdk.log_media(key, value, step, self.moment.time):
            self.leave_out(name, step, _TOO_LARGE)
            del self._steps[key]

    def purge(self, to_step: int) -> None:
        if self._sdk and self._highest > to_step:
            self._begin_anew(f"training went back to step {to_step}, and SwanLab cannot forget")

    def _begin_anew(self, why: str) -> None:
        """Mark this experiment as superseded, if the server is there, and ask for another one."""
        assert self._run is not None
        sdk = self._online()
        if sdk is not None:
            try:
                sdk.set_config(self._full_config("superseded"))
                sdk.upload()
                sdk.end("killed", self.moment.time)
            except ConnectionError as error:
                log.warning("swanlab: %s is superseded, but was not marked: %s", self._run.remote_id, error)
        raise NewBranchError(f"{why}; a new experiment takes its place")

    def _online(self) -> SwanlabRun | None:
        return self._sdk if self._sdk and self._sdk.mode == "online" else None

    def flush(self) -> None:
        if self._sdk:
            for name in self._sdk.upload():
                self.leave_out(name, None, "this server of SwanLab does not take files")

    def state(self) -> dict[str, Any]:
        steps: dict[str, list[str]] = {}
        for key, step in self._steps.items():
            steps.setdefault(str(step), []).append(key)
        numbers = {"alerts": self._alerts, "highest": self._highest}
        names = {"steps": steps, "renamed": self.renamed()}
        return {"mode": self._mode, "config": self._config, **names, **numbers}

    def ids(self) -> dict[str, Any]:
        return self._ids

    def renamed(self) -> dict[str, str]:
        return {**self._renamed_before, **self._spell_file.renamed, **self._spell.renamed}

    def where(self) -> str:
        return self._where

    def finish(self, status: RunStatus) -> None:
        sdk = self._sdk
        if sdk is None:
            return
        sdk.set_config(self._full_config(status))
        self.flush()
        if self._online() and self._steps and (lost := self._missing(sdk)):
            raise ConnectionError(f"the server acknowledged everything, but does not have {lost}")
        sdk.end(status, self.moment.time)
        self.close()

    def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            sdk.abandon()


def _name(run: TrackedRun) -> str:
    name = charts.writable(run.experiment).strip() or run.run_id
    return name[:500] + (f" ({run.branch + 1})" if run.branch else "")


def _folder(run: TrackedRun) -> Path:
    chosen = variable("SWANLAB_LOG_DIR")
    return Path(chosen).expanduser() if chosen else run.directory / FOLDER


def _move_aside(folder: Path, stem: str) -> None:
    """Earlier files of this run must not be taken for it; the latest of each name are kept, the journal has all."""
    for found in sorted(folder.glob(f"{stem}*")):
        if found.name != stem and not found.name.removeprefix(f"{stem}-").isdecimal():
            continue  # another run's
        target = folder / SUPERSEDED / found.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        shutil.move(found, target)


def _same(known: tuple[int, float] | None, step: int, value: float) -> bool:
    if known is None or known[0] != step:
        return False
    return known[1] == value or (math.isnan(known[1]) and math.isnan(value))
