"""What `Tracking(...)` is on every process but the main one: it takes all calls and writes nothing."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from verl.config.environment import variable
from verl.config.secrets import mask_text
from verl.tracking.logger import AlertLevel
from verl.tracking.metrics import MetricBuffer
from verl.tracking.rank_messages import RankMessage, RankMessages
from verl.tracking.table import check_tracker
from verl.tracking.trackers import Tracker
from verl.tracking.tracking import EndStatus, Tracking, listed
from verl.tracking.writer import Writer


class SilentTracking(Tracking):
    """Keeps samples of metrics for `reduce_metrics`; opens no tracker, makes no file, prints nothing.

    Alerts, and notes that are warnings or errors, wait for the next `reduce_metrics(tracking)`, where rank 0 logs
    them; those still waiting when the process ends go to its standard error. Everything else that is not a sample is
    dropped: rank 0 runs the same code and logs its own.

    Attributes:
        home: The run directory if `log_dir` or VERL_LOG_DIR names one, which this process does not make; else a path
            where nothing can be written.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: Tracker | Sequence[Tracker] | None = None,
        config: BaseModel | Mapping[str, Any] | None = None,
        *,
        log_dir: str | None = None,
        rank: int | None = None,
        **_: Any,
    ) -> None:
        for tracker in listed(default_backend):
            if isinstance(tracker, str):
                check_tracker(tracker)  # stops all ranks for a mistake; only rank 0 looks at logins and servers
        given = log_dir or variable("VERL_LOG_DIR")
        super(Tracking, self).__init__(Path(given).expanduser() if given else Path(os.devnull))
        self.metrics = MetricBuffer()
        self.rank_messages = RankMessages(lambda message: self.rank_messages.add(message))
        self.writer = _SilentWriter(self)
        self._process = os.getpid()
        atexit.register(self._finish_at_exit)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} is not there: this process is not rank 0, so its Tracking writes nothing")

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        self.step = self._step_of(step)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        self.step = self._step_of(step)

    def log_scalars(self, metrics: Mapping[str, Any], step: int | None, walltime: float | None = None) -> None:
        pass

    def log_histogram(self, *_: Any, **__: Any) -> None:
        pass

    def log_counts(self, *_: Any, **__: Any) -> None:
        pass

    def log_table(self, *_: Any, **__: Any) -> None:
        pass

    def log_image(self, *_: Any, **__: Any) -> None:
        pass

    def log_embedding(self, *_: Any, **__: Any) -> None:
        pass

    def log_config(self, config: BaseModel | Mapping[str, Any]) -> None:
        pass

    def record_environment(self, **facts: Any) -> None:
        pass

    def alert(self, title: str, text: str, level: AlertLevel = "warning") -> None:
        self.rank_messages.add(RankMessage(str(title), str(text), level))

    def note(self, text: str, level: str = "info") -> None:
        if level == "warning" or level == "error":
            self.rank_messages.add(RankMessage("", str(text), level))

    def warn_once(self, topic: str, text: str) -> None:
        """Nothing: it is about a value that this process does not log anyway."""

    def wait_until_open(self, seconds: float = 0.0) -> None:
        pass

    def rewind(self, to_step: int) -> None:
        self.step = self._step_of(to_step)

    def progress(self, step: int) -> None:
        self.step = self._step_of(step)

    def check_health(self) -> None:
        pass

    def unwatched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def finish(self, status: EndStatus, error: str | None = None, *, seconds: float = 0.0) -> None:
        """Tells on the standard error what could not be told to rank 0."""
        atexit.unregister(self._finish_at_exit)
        for message in self.rank_messages.waiting():
            title = f"{message.title}: " if message.title else ""
            sys.stderr.write(mask_text(f"verl, {message.level} not logged by rank 0: {title}{message.text}\n"))
        self.rank_messages.clear()

    def _append(self, kind: str, step: int | None, **fields: Any) -> None:
        pass

    def _log_file(self, *_: Any, **__: Any) -> None:
        pass


class _SilentWriter(Writer):
    """Also writes no file of hyperparameters."""

    def add_hparams(self, *_: Any, **__: Any) -> None:
        pass
