"""The run directory: where everything of a run lies, who the run is, and who may train in it."""

from __future__ import annotations

import dataclasses
import os
import random
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from verl.config.secrets import mask, mask_text
from verl.errors import JournalError
from verl.journal.failures import journal_error
from verl.journal.files import replace_file
from verl.journal.locks import OwnedLock, short_lock
from verl.journal.processes import ProcessIdentity
from verl.journal.run_info import RUNNING, STATUSES, Attempt, RunInfo
from verl.journal.segments import last_attempt


class RunDirectory:
    """A run on the disk.

        run = RunDirectory.create("logs/a", project="stocks", experiment="ppo-1")
        number = run.start_attempt(resumed_from=None)
        ...
        run.finish_attempt("finished")

    It can be given wherever a path is expected (`os.PathLike`). Every property reads the disk, so
    several processes (trainer, relay, viewer) see each other's changes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = OwnedLock(path / "journal" / "run.lock", "trains in")
        self._started: int | None = None
        self._names: tuple[str, str] | None = None  # for a start from scratch

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, project: str, experiment: str) -> Self:
        """Run directory at `path`, made if it is not there; an earlier run in it is left as it is.

        Other files in the folder are left alone too. An earlier run keeps its id and trackers; it may be running, so
        it takes the new names only when an attempt starts from scratch (`start_attempt`).

        Raises:
            JournalError: The path is a file, cannot be made or written, or its `run.json` is damaged.
        """
        run = cls(Path(path).expanduser().absolute())
        project, experiment = mask_text(project), mask_text(experiment)
        run._names = (project, experiment)
        try:
            if run.path.exists() and not run.path.is_dir():
                raise JournalError(
                    f"{run.path} is a file, not a folder. Choose another trainer.log_dir or VERL_LOG_DIR."
                )
            run.journal.mkdir(parents=True, exist_ok=True)
        except JournalError:
            raise
        except OSError as error:
            raise journal_error("create the run directory", run.path, error) from error
        with short_lock(run.journal):
            if run.run_json.exists():
                run._read()
            else:
                info = RunInfo(_new_run_id(), project, experiment, created=time.time())
                replace_file(run.run_json, info.to_json())
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The run at `path`, for reading or for adding facts to it.

        Raises:
            JournalError: There is no run at this path, or its `run.json` is damaged.
        """
        run = cls(Path(path).expanduser().absolute())
        if not run.run_json.is_file():
            raise JournalError(_not_a_run(run.path))
        run._read()
        return run

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    # Where things lie.

    @property
    def run_json(self) -> Path:
        """Who this run is."""
        return self.path / "run.json"

    @property
    def config_yaml(self) -> Path:
        """The resolved configuration, secrets masked."""
        return self.path / "config.yaml"

    @property
    def environment_json(self) -> Path:
        """Code, packages, hardware, seeds, fingerprints."""
        return self.path / "environment.json"

    @property
    def journal(self) -> Path:
        """The records."""
        return self.path / "journal"

    @property
    def trajectories(self) -> Path:
        """Rollouts: `wal`, `steps` and `index`."""
        return self.path / "trajectories"

    @property
    def trajectory_steps(self) -> Path:
        """One Parquet file per step, in `train` and `val`."""
        return self.trajectories / "steps"

    @property
    def trajectory_index(self) -> Path:
        """One row per rollout."""
        return self.trajectories / "index"

    def trajectory_wal(self, writer: str) -> Path:
        """Finished rollouts of one writer as they come."""
        return self.trajectories / "wal" / writer

    @property
    def relay(self) -> Path:
        """How far each tracker has been fed."""
        return self.path / "relay"

    @property
    def relay_log(self) -> Path:
        """What the relay process says."""
        return self.relay / "relay.log"

    def relay_cursor(self, tracker: str) -> Path:
        """State of one tracker's feed."""
        return self.relay / f"{tracker}.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of all checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint of a step."""
        return self.checkpoints / f"global_step_{step}"

    @property
    def superseded(self) -> Path:
        """What starts from scratch put aside."""
        return self.path / "superseded"

    # Who the run is.

    @property
    def info(self) -> RunInfo:
        """The content of `run.json` as it is now.

        Raises:
            JournalError: It is gone or damaged.
        """
        return self._read()

    @property
    def run_id(self) -> str:
        """Identifier of the run, the same over all attempts."""
        return self._read().run_id

    @property
    def status(self) -> str:
        """created, running, finished, failed, killed or crashed (its process died without a word)."""
        return self._read().status

    def start_attempt(self, resumed_from: str | os.PathLike[str] | None = None) -> int:
        """Takes the run for this process and opens the next attempt.

        Without `resumed_from` the run takes the names given to `create`; a resumed one keeps its own, for trackers
        know it by them. No file is moved: who starts from scratch puts the earlier files aside with `supersede`
        once it knows that it can run. The run stays locked until `finish_attempt`, or the death of the process.

        Args:
            resumed_from: Checkpoint of this run to go on from; nothing for a start from scratch.

        Returns:
            Number of the attempt, from 1.

        Raises:
            JournalError: Another process trains in this directory, or it cannot be written.
        """
        self._lock.acquire()
        try:
            # The journal may know attempts that run.json does not, if that was lost and made anew.
            earlier = max([last_attempt(self.journal), *(attempt.number for attempt in self._read().attempts)])
            attempt = _new_attempt(earlier + 1, resumed_from)
            names = self._names if resumed_from is None else None
            self._update(lambda info: _with_attempt(info, attempt, names))
        except BaseException:
            self._lock.release()
            raise
        self._started = attempt.number
        return self._started

    def finish_attempt(self, status: str, number: int | None = None) -> None:
        """Closes an attempt: this process's own, or by number one whose process is gone.

        Args:
            status: finished, failed, killed or crashed.
            number: The attempt; nothing = the one this object started, else the last.

        Raises:
            JournalError: There is no such attempt, or `run.json` cannot be written.
        """
        if status not in STATUSES or status == RUNNING:
            raise ValueError(f"Status {status!r}: an attempt ends as finished, failed, killed or crashed.")
        number = number if number is not None else self._started
        self._update(lambda info: _with_status(info, number, status, self.run_json))
        if number == self._started and self._lock.is_held:
            self._lock.release()
            self._started = None

    def set_tracker_id(self, tracker: str, /, **ids: Any) -> None:
        """Adds a tracker's own identifiers, such as `set_tracker_id("mlflow", run_id="...")`."""
        self._update(lambda info: _with_tracker(info, tracker, mask(ids)))

    def supersede(self, attempt: int) -> None:
        """Moves checkpoints and trajectories to `superseded/attempt_<n>/`; nothing is deleted.

        For the process that holds the run, between `start_attempt` and the first file it writes itself.

        Args:
            attempt: Number of the attempt they belong to: the last one before this start from scratch.

        Raises:
            JournalError: They cannot be moved.
        """
        target = self.superseded / f"attempt_{attempt}"
        for source in (self.checkpoints, self.trajectories):
            try:
                if source.exists() and (source.is_symlink() or any(source.iterdir())):
                    target.mkdir(parents=True, exist_ok=True)
                    os.rename(source, _free_name(target / source.name))
            except OSError as error:
                raise journal_error(f"move {source.name}/ of the earlier run to {target}", source, error) from error

    def _read(self) -> RunInfo:
        try:
            content = self.run_json.read_bytes()
        except FileNotFoundError:
            raise JournalError(_not_a_run(self.path)) from None
        except OSError as error:
            raise journal_error("read run.json", self.run_json, error) from error
        return RunInfo.from_json(content, self.run_json)

    def _update(self, change: Callable[[RunInfo], RunInfo]) -> RunInfo:
        """Changes `run.json` with other processes held off, so no change of theirs is lost."""
        with short_lock(self.journal):
            info = change(self._read())
            replace_file(self.run_json, info.to_json())
        return info


def _new_attempt(number: int, resumed_from: str | os.PathLike[str] | None) -> Attempt:
    process = ProcessIdentity.current()
    source = None if resumed_from is None else os.fspath(resumed_from)
    return Attempt(number, process.since, process.pid, process.host, resumed_from=source)


def _with_attempt(info: RunInfo, attempt: Attempt, names: tuple[str, str] | None) -> RunInfo:
    project, experiment = names or (info.project, info.experiment)
    return dataclasses.replace(info, project=project, experiment=experiment, attempts=(*info.attempts, attempt))


def _with_tracker(info: RunInfo, name: str, ids: dict[str, Any]) -> RunInfo:
    known = info.trackers.get(name, {})
    return dataclasses.replace(info, trackers={**info.trackers, name: {**known, **ids}})


def _with_status(info: RunInfo, number: int | None, status: str, path: Path) -> RunInfo:
    numbers = [attempt.number for attempt in info.attempts]
    if not numbers or (number is not None and number not in numbers):
        raise JournalError(f"{path} has no attempt {number or 1}; it has {numbers or 'none'}.")
    chosen = numbers[-1] if number is None else number
    attempts = tuple(
        dataclasses.replace(attempt, status=status, ended=time.time()) if attempt.number == chosen else attempt
        for attempt in info.attempts
    )
    return dataclasses.replace(info, attempts=attempts)


def _new_run_id() -> str:
    letters = string.ascii_lowercase + string.digits
    return "".join(random.SystemRandom().choices(letters, k=8))


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _not_a_run(path: Path) -> str:
    if not path.is_dir():
        return f"There is no run directory {path}."
    runs = sorted(entry.parent.name for entry in path.glob("*/run.json"))
    if runs:
        return f"{path} is not a run directory, but has some in it: {', '.join(runs[-5:])}."
    return f"{path} is not a run directory: that is a folder with run.json and journal/ in it."
