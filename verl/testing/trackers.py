"""A tracker for tests: it keeps what it was shown.

logger = RecordingLogger()
with Tracking("project", "experiment", [logger], log_dir=str(tmp_path)) as tracking:
    tracking.log_metrics({"loss": 0.5}, 1)
assert logger.points("loss") == [(1, 0.5)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from verl.tracking import Artifact, Embedding, Histogram, Moment, TrackedRun, TrainerLogger


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tracker's method.

    Attributes:
        method: Its name. arguments: Its arguments, in order.
        moment: When the thing happened and in which attempt.
    """

    method: str
    arguments: tuple[Any, ...]
    moment: Moment


class RecordingLogger(TrainerLogger):
    """Keeps every call, in order.

    Args:
        before_call: Called with the method's name before a call is kept; may raise (the call is then lost, as
            with a tracker that fails) or block (as with one that hangs).

    Attributes:
        run: What it was opened for, once it was.
        calls: All calls but `open`, `flush` and `state`.
        flushes: How often it was flushed.
    """

    shows: ClassVar[frozenset[str]] = frozenset(
        {
            "metrics",
            "config",
            "text",
            "histogram",
            "table",
            "embedding",
            "image",
            "artifact",
            "trajectory",
            "alert",
            "rewind",
        }
    )

    def __init__(self, before_call: Callable[[str], None] | None = None) -> None:
        self._before_call = before_call
        self.run: TrackedRun | None = None
        self.calls: list[Call] = []
        self.flushes = 0

    def of(self, method: str) -> list[tuple[Any, ...]]:
        """Arguments of all calls of one method."""
        return [call.arguments for call in self.calls if call.method == method]

    def points(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, in the order of the calls."""
        return [(step, metrics[key]) for metrics, step in self.of("log_metrics") if key in metrics]

    @property
    def status(self) -> str | None:
        """Status that it was finished with; None while it was not."""
        ends = self.of("finish")
        return ends[-1][0] if ends else None

    def open(self, run: TrackedRun) -> None:
        if self._before_call is not None:
            self._before_call("open")
        self.run = run

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._keep("log_metrics", metrics, step)

    def log_config(self, config: dict[str, Any]) -> None:
        self._keep("log_config", config)

    def log_text(self, tag: str, text: str, step: int) -> None:
        self._keep("log_text", tag, text, step)

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        self._keep("log_histogram", tag, histogram, step)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self._keep("log_table", name, columns, rows, step)

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        self._keep("log_embedding", embedding, step)

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        self._keep("log_artifact", artifact, step)

    def log_trajectory(self, trajectory: Any, step: int) -> None:
        self._keep("log_trajectory", trajectory, step)

    def alert(self, title: str, text: str, level: str) -> None:
        self._keep("alert", title, text, level)

    def purge(self, to_step: int) -> None:
        self._keep("purge", to_step)

    def flush(self) -> None:
        if self._before_call is not None:
            self._before_call("flush")
        self.flushes += 1

    def finish(self, status: str) -> None:
        self._keep("finish", status)

    def _keep(self, method: str, *arguments: Any) -> None:
        if self._before_call is not None:
            self._before_call(method)
        self.calls.append(Call(method, arguments, self.moment))
