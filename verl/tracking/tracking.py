"""What a training loop holds: everything it logs goes to the journal, and from there to every tracker.

with Tracking("stocks", "first try", ["console", "tensorboard"], config={"lr": 1e-3}, total_steps=100) as tracking:
    for step in range(1, 101):
        tracking.log_metrics({"loss/policy_loss": loss}, step)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from threading import Thread
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args

from pydantic import BaseModel

from verl.config.environment import process_rank, resolve_log_dir, variable
from verl.config.schema import HealthConfig, PPOConfig, TrainerConfig
from verl.config.secrets import mask_text
from verl.config.show import changed_keys
from verl.journal import JournalWriter, Kind, RunDirectory
from verl.journal.environment import write_config_yaml, write_environment_in_background
from verl.journal.run_listing import latest_step
from verl.tracking.health.monitor import HealthMonitor
from verl.tracking.logger import AlertLevel, TrainerLogger
from verl.tracking.metrics import MetricBuffer
from verl.tracking.mixed_data import sort_data
from verl.tracking.rank_messages import RankMessage, RankMessages
from verl.tracking.recorder import Recorder, never_raising
from verl.tracking.relay.feed import FeedSource
from verl.tracking.system.sampler import SystemSampler
from verl.tracking.table import chosen_proxies
from verl.tracking.tracker_watch import TrackerWatch
from verl.tracking.trackers import Tracker, TrackerSet
from verl.tracking.writer import Writer

FINISH_SECONDS = 15.0
"""Longest time that the end of training waits for trackers; the relay goes on without it."""

ENVIRONMENT_SECONDS = 30.0
"""Longest time that the end waits for the record of the environment, of which large data files are a part."""

OPEN_SECONDS = 10.0
"""Longest time that the start of training waits for the ids that trackers' servers give."""

_GOES_BACK = (Kind.REWIND, Kind.METRICS, Kind.HISTOGRAM, Kind.TEXT, Kind.TABLE)

EndStatus = Literal["finished", "failed", "killed"]


class Tracking(Recorder):
    """The journal of a run and the trackers fed from it.

    Whatever a tracker does, no call here raises for it or waits for it; the only error after the start is
    `JournalError`, when the run directory cannot be written.

    With several processes all of them run the same code, and only rank 0 writes: on the others `Tracking(...)` is a
    `SilentTracking`. If `{rank}` is in the name of the run directory, each process has one of its own.

    Args:
        project_name: Project.
        experiment_name: Name of the run for people.
        default_backend: Trackers: names, `package.module:Class`, or your own `TrainerLogger` classes or objects
            (these are fed by a thread of this process); nothing = the default of `trainer.logger`.
        config: Configuration to record: a mapping or pydantic model.
        log_dir: Run directory; nothing = `VERL_LOG_DIR`, else `logs/<YYYYmmdd_HHMMSS>`.
        total_steps: Steps of the run, if known.
        async_log: Feed trackers from a relay process (default), or here, in each call, for debugging.
        wandb_proxy: Proxy for W&B alone; nothing = VERL_WANDB_PROXY.
        rank: Number of this process among all; nothing = RANK, which torchrun sets, else 0.
        system_metrics_interval: Seconds between samples of the machine, whose means and maxima since the last record
            join each step's metrics as `system/...` (a key of yours of the same name wins); nothing or 0 = none.
        health: Rules that watch the metrics and alert people, such as `HealthConfig()`; nothing = none.
        opened: A run directory whose attempt this process has started already, with the attempt's number.

    Attributes:
        metrics: Samples of metrics until they are logged (`metrics.add`, `metrics.reduce`).
        writer: The methods of TensorBoard's `SummaryWriter`, for every tracker.
        step: The step last begun or logged.
        run_directory: The run directory.
        rank_messages: What other ranks want to tell people, for `verl.distributed.metric_reduction`.

    Raises:
        TrackerError: A tracker is unknown or not installed.
        JournalError: The run directory cannot be written, or another process uses it.
    """

    def __new__(
        cls,
        *_: Any,
        log_dir: str | None = None,
        rank: int | None = None,
        opened: tuple[RunDirectory, int] | None = None,
        **__: Any,
    ) -> Self:
        if cls is Tracking and opened is None and _is_silent(log_dir, rank):
            from verl.tracking.silent_tracking import SilentTracking  # it extends this class

            return cast(Self, object.__new__(SilentTracking))
        return object.__new__(cls)

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: Tracker | Sequence[Tracker] | None = None,
        config: BaseModel | Mapping[str, Any] | None = None,
        *,
        log_dir: str | None = None,
        total_steps: int | None = None,
        async_log: bool | None = None,
        wandb_proxy: str | None = None,
        rank: int | None = None,
        system_metrics_interval: float | None = None,
        health: HealthConfig | None = None,
        opened: tuple[RunDirectory, int] | None = None,
    ) -> None:
        trackers = listed(default_backend)
        proxies = _proxies(wandb_proxy)
        warnings = [] if opened else TrackerSet.check(trackers, proxies)
        directory, attempt = opened or _new_attempt(project_name, experiment_name, _with_rank(log_dir, rank))
        super().__init__(directory.path)
        self.run_directory = directory
        self.metrics = MetricBuffer()
        self.rank_messages = RankMessages(self._tell)
        self.writer = Writer(self)
        self._attempt = attempt
        self._process = os.getpid()
        self._logged_config: Mapping[str, Any] | None = None
        self._is_finished = False
        self._environment: Thread | None = None
        self._earlier_step = latest_step(directory.journal) if attempt > 1 else None
        self._delivery = threading.RLock()
        self._sampler: SystemSampler | None = None
        self._health: HealthMonitor | None = None
        is_inline = not (TrainerConfig().async_log if async_log is None else async_log)
        try:
            source = FeedSource(directory, attempt, total_steps, proxies)
            self._trackers = TrackerSet(trackers, source, is_inline=is_inline)
            self._journal = JournalWriter(directory, attempt=attempt)
            self._begin(project_name, experiment_name, total_steps)
            if system_metrics_interval:
                self._sampler = SystemSampler(self.home, system_metrics_interval, self._warn)
            if health is not None and health.enabled:
                self._health = HealthMonitor(health, self.alert, total_steps)
        except BaseException:
            directory.finish_attempt("failed", attempt)
            raise
        atexit.register(self._finish_at_exit)
        for warning in warnings:
            self._warn(warning)
        if config is not None:
            self.log_config(config)
        if opened is None:
            self.record_environment()
            self.wait_until_open()

    def _begin(self, project: str, experiment: str, total_steps: int | None) -> None:
        try:
            self._journal.append(
                Kind.RUN,
                None,
                run_id=self.run_directory.run_id,
                project=project,
                experiment=experiment,
                total_steps=total_steps,
                trackers=self._trackers.names,
                run_dir_name=self.home.name,
            )
            self._trackers.start()
            self._watch = TrackerWatch(self._trackers.news, self._warn)
        except BaseException:
            self._journal.close()
            raise

    @staticmethod
    def preflight(config: TrainerConfig, loggers: Sequence[Tracker] = ()) -> list[str]:
        """Make sure that trackers can work, in three seconds at most, before anything is loaded or started.

        Args:
            config: Its `logger` and `wandb_proxy` count.
            loggers: As for `start`.

        Returns:
            What does not work now but may later, such as a server that is away, in sentences.

        Raises:
            TrackerError: A tracker is unknown, not installed or has no login; the message names all that is wrong.
        """
        return TrackerSet.check([*config.logger, *loggers], _proxies(config.wandb_proxy))

    @classmethod
    def start(
        cls,
        run_directory: RunDirectory,
        config: PPOConfig,
        *,
        total_steps: int | None,
        attempt: int,
        loggers: Sequence[Tracker] = (),
    ) -> Self:
        """Begin tracking as a trainer does, after `preflight`, in a run directory whose attempt has been started.

        Args:
            run_directory: The run.
            config: Its configuration, recorded at once.
            total_steps: Steps of the run.
            attempt: Number from `RunDirectory.start_attempt`.
            loggers: Your own trackers, in addition to `config.trainer.logger`.

        Raises:
            TrackerError, JournalError: As the class.
        """
        info = run_directory.info
        return cls(
            info.project,
            info.experiment,
            [*config.trainer.logger, *loggers],
            config,
            total_steps=total_steps,
            async_log=config.trainer.async_log,
            wandb_proxy=config.trainer.wandb_proxy,
            system_metrics_interval=config.trainer.system_metrics_interval,
            health=config.trainer.health,
            opened=(run_directory, attempt),
        )

    @never_raising
    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """Log the values of a step, each as what it is; none of them raises.

        Args:
            data: Numbers as metrics, texts (and lists of texts) as text, arrays, tensors and lists of several numbers
                as histograms, images of Pillow as images; dictionaries in it with keys joined by `/`. Anything else
                is left out with a warning.
            step: Training step; nothing = the current one.
        """
        if not isinstance(data, Mapping):
            self.warn_once("log", f"not logged: data is a dictionary of values by key, not a {type(data).__name__}")
            return
        found = sort_data(data)
        self.log_metrics(found.numbers, step)
        for key, text in found.texts.items():
            self.log_text(key, text, self.step)
        for key, values in found.distributions.items():
            self.log_histogram(key, values, self.step)
        for key, image in found.images.items():
            self.log_image(key, image, self.step, "HWC")

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        step = self._step_of(step)
        if self._health is not None:
            self._health.begin_step(step)
        if self._sampler is not None and metrics:
            sampled = self._sampler.take(step)
            metrics = {**metrics, **{key: value for key, value in sampled.items() if key not in metrics}}
        super().log_metrics(metrics, step)

    def log_config(self, config: BaseModel | Mapping[str, Any]) -> None:
        """Record the resolved configuration (secrets are masked); the same one again changes nothing."""
        content = config.model_dump(mode="json") if isinstance(config, BaseModel) else dict(config)
        if content == self._logged_config:
            return
        self._logged_config = content
        write_config_yaml(self.run_directory, content)
        changed = changed_keys(config) if isinstance(config, PPOConfig) else {}
        self._append(Kind.CONFIG, None, config=content, changed=changed)
        self.log_artifact(self.run_directory.config_yaml)

    def record_environment(self, **facts: Any) -> None:
        """Write `environment.json` in the background, for trackers too.

        Args:
            facts: seeds, data_files and models, as for `verl.journal.environment.capture_environment`.
        """
        path, step = self.run_directory.environment_json, self.step
        self._environment = write_environment_in_background(
            self.run_directory, lambda: self.log_artifact(path, step=step), attempt=self._attempt, **facts
        )

    @never_raising
    def alert(self, title: str, text: str, level: AlertLevel = "warning") -> None:
        """Tell people, in every tracker, something that they should look at."""
        self._append(Kind.ALERT, self.step, title=str(title), text=str(text), level=level)

    def check_health(self) -> None:
        """Raise if a health rule that is to end the run has fired; for places where it can end in order.

        Raises:
            HealthStopError: A rule of `health.stop_on` has.
        """
        if self._health is not None:
            self._health.check()

    def unwatched(self) -> AbstractContextManager[None]:
        """A block that is no part of a step, such as validation or a checkpoint: it may take any time.

        with tracking.unwatched():
            scores = validate()
        """
        return nullcontext() if self._health is None else self._health.pause()

    def _tell(self, message: RankMessage) -> None:
        if message.title:
            self.alert(*message)
        else:
            self.note(message.text, message.level)

    def wait_until_open(self, seconds: float = OPEN_SECONDS) -> None:
        """Wait until every tracker with a server has its id in `run.json`, or has failed once; never longer than this.

        Trainers call it before step 0, so that whoever watches the first step knows where.
        """
        self._trackers.wait_until_open(seconds)

    def rewind(self, to_step: int) -> None:
        """Say that training goes on from an earlier step: what was logged after it is superseded.

        To be called first by who resumes; else an attempt that begins before the last step of an earlier one goes back
        to the step before its first.
        """
        self.step = self._step_of(to_step)
        if self._sampler is not None:
            self._sampler.rewind(self.step)
        if self._health is not None:
            self._health.reset()
        self._append(Kind.REWIND, self.step, to=self.step)

    def progress(self, step: int) -> None:
        """Say that a step begins, logged or not. Costs next to nothing."""
        self.step = self._step_of(step)
        self._trackers.progress(self.step)
        if self._health is not None:
            self._health.begin_step(self.step)

    def flush(self) -> None:
        self._trackers.hurry()

    def sync(self) -> None:
        """Return when everything logged so far is on the disk.

        Raises:
            JournalError: The disk failed.
        """
        self._journal.sync()

    def finish(self, status: EndStatus, error: str | None = None, *, seconds: float = FINISH_SECONDS) -> None:
        """Record how the run ended, give trackers a bounded time, and print the summary. Again: does nothing.

        Args:
            status: finished, failed or killed.
            error: What went wrong, in words.
            seconds: Longest wait for trackers.

        Raises:
            JournalError: The end could not be recorded; everything is closed all the same.
            ValueError: There is no such status.
        """
        if status not in get_args(EndStatus):
            raise ValueError(f"finish: a run ends as {', '.join(get_args(EndStatus))}; given: {status!r}")
        if self._is_finished or os.getpid() != self._process:  # the run is the parent's, not a forked child's
            return
        self._is_finished = True
        error = None if error is None else mask_text(str(error))
        atexit.unregister(self._finish_at_exit)
        if self._environment is not None:
            self._environment.join(ENVIRONMENT_SECONDS)
        for watcher in (self._watch, self._sampler, self._health):
            if watcher is not None:
                watcher.stop()
        try:
            self._append(Kind.FINISH, self.step, status=status, error=error)
            self._journal.sync()
        finally:
            try:
                for problem in self._trackers.finish(status, error, seconds):
                    self._journal.append(Kind.NOTE, None, text=problem, level="warning")
            finally:
                self._journal.close()
                self.run_directory.finish_attempt(status, self._attempt)

    def _finish_at_exit(self) -> None:
        """For a program that ends without `finish`: only who says so has finished."""
        if os.getpid() != self._process:  # a forked child
            return
        error = getattr(sys, "last_value", None)  # set by the interpreter when a traceback ended the program
        if error is None:
            self.finish("killed", "the program ended without `finish`")
        else:
            self.__exit__(type(error), error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.finish("finished")
        else:
            status: EndStatus = "killed" if isinstance(error, KeyboardInterrupt) else "failed"
            self.finish(status, f"{type(error).__name__}: {error}")

    def _append(self, kind: str, step: int | None, **fields: Any) -> None:
        if self._earlier_step is not None and kind in _GOES_BACK:
            self._go_back(kind, step)
        try:
            record = self._journal.append(kind, step, **fields)
        except ValueError as error:  # such as a text of more megabytes than a record may have
            self.warn_once(f"{kind} record", f"not logged: {error}")
            return
        with self._delivery:  # alerts of a stalled step and notes come from threads of their own
            self._trackers.push(record)
        if self._health is not None and kind == Kind.METRICS and step is not None:
            self._health.observe(step, fields["metrics"])

    def _go_back(self, kind: str, step: int | None) -> None:
        """A later attempt that begins before the last step of an earlier one, and did not say so, goes back."""
        earlier, self._earlier_step = self._earlier_step, None
        if kind == Kind.REWIND or step is None or earlier is None or step >= earlier:
            return
        self._append(Kind.REWIND, step - 1, to=step - 1)
        self.note(
            f"This attempt begins at step {step}: what an earlier one logged from there to {earlier} is superseded."
        )

    def _warn(self, text: str) -> None:
        self.note(text, level="warning")


def listed(default_backend: Tracker | Sequence[Tracker] | None) -> list[Tracker]:
    """The trackers that `default_backend` means."""
    backends = TrainerConfig().logger if default_backend is None else default_backend
    return [backends] if isinstance(backends, str | type | TrainerLogger) else list(backends)


def _is_silent(log_dir: str | None, rank: int | None) -> bool:
    """Whether this process writes nothing: it is not the first, and has no run directory of its own."""
    if (process_rank().rank if rank is None else rank) == 0:
        return False
    return "{rank}" not in (log_dir or variable("VERL_LOG_DIR") or "")


def _with_rank(log_dir: str | None, rank: int | None) -> str | None:
    given = log_dir or variable("VERL_LOG_DIR")
    return log_dir if given is None or rank is None else given.replace("{rank}", str(rank))


@dataclass(frozen=True, slots=True)
class _Settings:
    trainer: TrainerConfig


def _proxies(wandb_proxy: str | None) -> dict[str, str]:
    return chosen_proxies({"wandb_proxy": wandb_proxy})


def _new_attempt(project: str, experiment: str, log_dir: str | None) -> tuple[RunDirectory, int]:
    path = resolve_log_dir(_Settings(TrainerConfig(log_dir=log_dir)), datetime.now())
    directory = RunDirectory.create(path, project=project, experiment=experiment)
    return directory, directory.start_attempt()
