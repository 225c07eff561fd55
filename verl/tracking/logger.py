"""The one interface of every tracker, built-in or your own.

A tracker needs two methods:

    class PrintLogger(TrainerLogger):
        def log_metrics(self, metrics, step):
            print(step, metrics)

        def log_config(self, config):
            print(config)

All other methods do nothing until you write them. They are called one at a time, in the order in which things
happened, in a process or a thread of its own, so a tracker may be slow; only with `trainer.async_log=false` it is the
thread that logs. A tracker may raise: it is then closed, opened again after a while, and gets everything again that it
had not flushed. A record that fails again and again while others are taken is left out. One that hangs longer than its
`limits` is ended with its process, and begun again.

What it is given is the canonical view of the journal as far as that is known when it is opened: what a later attempt
superseded is not delivered. When training goes back while it is open, it is told by `purge`.
"""

# The methods without a body are optional, not forgotten.
# ruff: noqa: B027

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

AlertLevel = Literal["info", "warning", "error"]
RunStatus = Literal["finished", "failed", "killed", "crashed"]

SHOWABLE = (
    "metrics", "config", "text", "histogram", "table", "image", "embedding", "artifact", "alert", "rewind", "status",
)  # fmt: skip
"""What a tracker can show. "rewind" = after training went back it shows the new branch alone, "status" = it shows how
the run ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a call of a tracker hangs, and its process is ended and begun again.

    Attributes:
        open: For `open`, which may import a large package and reach a server for the first time.
        call: For each other call.
        finish: For `finish`, which may have to wait for uploads.
    """

    open: float = 90.0
    call: float = 60.0
    finish: float = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """An answer to a question of the diagnosis, found without the tracker's own package.

    Attributes:
        question: What was looked at, one or two words: "installed", "login", "server", "proxy", "mode", ...
        result: "error" = the tracker cannot work until somebody does something: training does not start.
            "warning" = it does not work now, but may later, such as a server that is away.
        found: What was found, one sentence without secrets.
        advice: What to do, one sentence or command; empty where all is well.
    """

    question: str
    result: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""


@dataclass(slots=True)
class Omission:
    """Something that a tracker left out of what it was given, and why.

    Attributes:
        count: How often. step: The last step at which. reason: In words.
    """

    count: int
    step: int | None
    reason: str


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
        branch: How often this tracker was begun anew because it could not forget (`NewBranchError`, `verl sync
            --fresh`): each branch is a remote run of its own.
        proxy: Proxy for this tracker alone, if one is configured.
    """

    run_id: str
    project: str
    experiment: str
    directory: Path
    attempt: int = 1
    total_steps: int | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    branch: int = 0
    proxy: str | None = None

    @property
    def remote_id(self) -> str:
        """Identity of this branch, for trackers whose ids are made by the client: `k3x9a2bc`, then `k3x9a2bc-2`."""
        return self._id_of(self.branch)

    @property
    def superseded_remote_id(self) -> str | None:
        """`remote_id` of the branch before this one, which it supersedes; nothing for the first."""
        return self._id_of(self.branch - 1) if self.branch else None

    def _id_of(self, branch: int) -> str:
        return self.run_id if branch == 0 else f"{self.run_id}-{branch + 1}"


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
    """Raised by a tracker, mostly by `open`: what it had acknowledged may be gone, such as the tail of a file.

    It is opened again with an empty state, for the same remote run, and gets the whole canonical run from the
    beginning. Not to be raised by an `open` with an empty state.
    """


class NewBranchError(StateLostError):
    """Raised by a tracker that holds what it can neither continue nor forget, mostly by `purge`.

    It is opened again with an empty state and the next `TrackedRun.branch`, for a new remote run.
    """


class ProcessSpoiledError(Exception):
    """Raised by a tracker whose package cannot be used any more in this process, such as after its helper died.

    The process that feeds it is replaced by a new one, where it is opened again with its last state.
    """


class TrainerLogger(ABC):
    """A tracker: console, TensorBoard, a test's list, or your own.

    Attributes:
        shows: What it shows; the support matrix of the docs is made from it. The names are those of `SHOWABLE`.
        limits: How long its calls may take.
        moment: Set before each call: when the thing happened.
        omissions: What it left out, by key or name (`leave_out`).
    """

    shows: ClassVar[frozenset[str]] = frozenset({"metrics", "config"})
    limits: ClassVar[Limits] = Limits()
    moment: Moment = Moment()
    omissions: dict[str, Omission]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        logger = super().__new__(cls)
        logger.omissions = {}
        return logger

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        """Look, in at most three seconds and without importing the tracker's package, whether this tracker can work.

        Answers in the order of the diagnosis: login first, then the server (through which proxy). Never raises.
        """
        return []

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
        """The run goes on from `to_step`, and something was shown for a later step: that is superseded.

        Raises:
            NewBranchError: This tracker cannot forget.
        """

    def progress(self, step: int) -> None:
        """Training begins this step, logged or not. Only the console, in the training process, hears of it."""

    def flush(self) -> None:
        """Make everything so far durable and visible. Called often; what was flushed is not sent again."""

    def state(self) -> dict[str, Any]:
        """What this tracker needs at its next `open` (a remote id, a file name), JSON-able; kept after each flush."""
        return {}

    def ids(self) -> dict[str, Any]:
        """Its own identifiers of the run (`run_id`, `url`, ...), for `run.json`; asked after `open` and each flush."""
        return {}

    def renamed(self) -> dict[str, str]:
        """Names that it spells in another way: key of the journal -> name in the tracker."""
        return {}

    def leave_out(self, name: str, step: int | None, reason: str) -> None:
        """Count something that this tracker cannot take, and go on; people find it with `verl doctor RUN`."""
        known = self.omissions.get(name)
        self.omissions[name] = Omission((known.count if known else 0) + 1, step, reason)

    def where(self) -> str:
        """How a person gets to see it: a command or an address; shown when the run ends."""
        return ""

    def finish(self, status: RunStatus) -> None:
        """End: the run's true status. Nothing but `close` is called after it."""

    def close(self) -> None:
        """Let go of files and connections without an end: the run goes on, fed by another process or opened again.

        Must not wait for a server.
        """
