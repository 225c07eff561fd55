"""The one interface of every tracker, built-in or your own.

A tracker needs two methods:

    class PrintLogger(TrainerLogger):
        def log_metrics(self, metrics, step):
            print(step, metrics)

        def log_config(self, config):
            print(config)

All other methods do nothing until you write them. They are called one at a time, in the order in which things
happened, in the relay process or a thread of their own, so a tracker may be slow; only with
`trainer.async_log=false` it is the thread that logs. A tracker may raise: it is then closed, opened again after a
while, and gets everything again that it had not flushed. A record that fails again and again while others are taken
is left out.
"""

# The methods without a body are optional, not forgotten.
# ruff: noqa: B027

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

AlertLevel = Literal["info", "warning", "error"]
RunStatus = Literal["finished", "failed", "killed", "crashed"]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker is opened for.

    Attributes:
        run_id: Identity of the run over all its attempts.
        project: Project name. experiment: Name of the run for people.
        directory: Run directory.
        attempt: Number of this start of the run, from 1.
        total_steps: Steps the run will take, if known.
        state: What this tracker's `state()` returned last; empty the first time.
    """

    run_id: str
    project: str
    experiment: str
    directory: Path
    attempt: int = 1
    total_steps: int | None = None
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """When and where in the journal the thing that is now being shown happened.

    Attributes:
        time: Unix seconds, frozen when it happened, so that a replay shows the same time.
        attempt: Attempt that it happened in.
        seq: Sequence number of its record.
    """

    time: float = 0.0
    attempt: int = 1
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution as counts.

    Attributes:
        minimum: Smallest finite value. maximum: Largest finite value.
        count: Number of finite values. sum: Their sum. sum_squares: Sum of their squares.
        bucket_limits: Right edges of the buckets, rising; the first bucket begins at `minimum`.
        bucket_counts: Values per bucket, one for each limit.
    """

    minimum: float
    maximum: float
    count: int
    sum: float
    sum_squares: float
    bucket_limits: list[float]
    bucket_counts: list[float]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Points for a projector.

    Attributes:
        tag: Name.
        vectors: One row per point, shape (points, dimensions).
        labels: One list of columns per point, or nothing.
        header: Names of these columns, empty for a single one.
        sprite: Contact sheet of the points' images (PNG), with `sprite_size` = (width, height) of one image.
    """

    tag: str
    vectors: np.ndarray
    labels: list[list[str]] | None = None
    header: list[str] = field(default_factory=list)
    sprite: Path | None = None
    sprite_size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or folder of the run.

    Attributes:
        name: Name, as the user gave it.
        path: Where it is.
        type: "file", "image", "checkpoint", "model", "hparams", or the user's own word.
        metadata: More facts, JSON-able.
    """

    name: str
    path: Path
    type: str = "file"
    metadata: Mapping[str, Any] = field(default_factory=dict)


class StateLostError(Exception):
    """Raised by a tracker's `open`: what it had acknowledged is gone, such as the tail of a file after a power loss.

    It is opened again with an empty state and gets the whole journal from the beginning.
    """


class TrainerLogger(ABC):
    """A tracker: console, TensorBoard, a test's list, or your own.

    Attributes:
        shows: Record kinds that it shows; the support matrix of the docs is made from it.
        moment: Set before each call: when the thing happened.
    """

    shows: ClassVar[frozenset[str]] = frozenset({"metrics", "config"})
    moment: Moment = Moment()

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Show the metrics of one step. Values may be NaN or infinite."""

    @abstractmethod
    def log_config(self, config: dict[str, Any]) -> None:
        """Show the resolved configuration (nested, secrets masked)."""

    def open(self, run: TrackedRun) -> None:
        """Begin. Called before everything else, in the thread of the later calls, and again after a failure.

        Raises:
            StateLostError: What `run.state` speaks of is gone.
        """

    def log_text(self, tag: str, text: str, step: int) -> None:
        """Show a text; Markdown where the tracker can."""

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        """Show a distribution."""

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Show a table, such as validation generations."""

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        """Show points of a high-dimensional space."""

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        """Show or store a file; `artifact.type == "image"` is a PNG to be seen."""

    def log_trajectory(self, trajectory: Mapping[str, Any], step: int) -> None:
        """Show one rollout."""

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        """Tell people something that they should know."""

    def purge(self, to_step: int) -> None:
        """The run goes on from `to_step`: what was shown for later steps is superseded."""

    def progress(self, step: int) -> None:
        """Training begins this step, logged or not. Only the console, in the training process, hears of it."""

    def flush(self) -> None:
        """Make everything so far durable and visible. Called often; what was flushed is not sent again."""

    def state(self) -> dict[str, Any]:
        """What this tracker needs at its next `open` (a remote id, a file name), JSON-able; kept after each flush."""
        return {}

    def where(self) -> str:
        """How a person gets to see it: a command or an address; shown when the run ends."""
        return ""

    def finish(self, status: RunStatus) -> None:
        """End: the run's true status. Nothing but `close` is called after it."""

    def close(self) -> None:
        """Let go of files and connections without an end: the run goes on, fed by another process or opened again."""
