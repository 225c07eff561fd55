"""What the console knows of a run, apart from how it is drawn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verl.tracking.catalogue import lookup
from verl.tracking.logger import TrackedRun

TELLING = {
    "reward/episode_reward_mean": "reward",
    "val/reward_mean": "val reward",
    "kl/kl_divergence": "kl",
    "loss/policy_loss": "policy loss",
    "loss/value_loss": "value loss",
    "policy/entropy": "entropy",
    "policy/clip_fraction": "clip fraction",
    "grad_norm/actor": "grad norm",
    "grad_norm/critic": "critic grad norm",
    "length/response_mean": "length",
    "length/truncated_fraction": "truncated",
    "throughput/tokens_per_second": "tokens/s",
    "throughput/rollout_per_second": "rollouts/s",
}
"""The metrics that tell most about a run, in the order in which they are shown, with their short names."""

ON_ONE_LINE = frozenset(
    {
        "reward/episode_reward_mean",
        "kl/kl_divergence",
        "loss/policy_loss",
        "loss/value_loss",
        "policy/entropy",
        "grad_norm/actor",
        "length/response_mean",
        "throughput/tokens_per_second",
    }
)
"""Those that a plain line has room for."""

REWARD, BEST = "reward/episode_reward_mean", "val/reward_mean"
_MOST_OTHERS = 8
_HISTORY = 512
_RECENT_STEPS = 20


@dataclass(slots=True)
class Curve:
    """One metric over the steps of this attempt."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    first: float = math.nan

    def add(self, value: float) -> None:
        if not self.values:
            self.first = value
        self.values.append(value)

    @property
    def latest(self) -> float:
        return self.values[-1]

    @property
    def change(self) -> float:
        """Latest value minus the one ten points before it (or the first)."""
        return self.latest - self.values[max(0, len(self.values) - 11)]


@dataclass(slots=True)
class RunView:
    """State of a run for the console.

    Attributes:
        run: The run.
        step: Last step that is done.
        curves: Shown metrics by key; telling ones first, then others in the order in which they came.
        phases: Seconds of the latest step by phase.
        seconds_per_step: Over the latest steps; 0 before the second.
        best: Best validation reward and its step.
        warnings: Number of warnings and errors; `last_warning` is the newest.
    """

    run: TrackedRun
    started: float
    step: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    warnings: int = 0
    last_warning: str = ""
    _has_training: bool = False
    _marks: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS + 1))

    def reach(self, step: int, now: float) -> None:
        """A step is done: never one before the first or after the last."""
        step = max(0, step if not self.run.total_steps else min(step, self.run.total_steps))
        if step > self.step or not self._marks:
            self.step = step
            self._marks.append((step, now))

    def go_back(self, to_step: int) -> None:
        """Training goes on from an earlier step."""
        self.step = to_step
        self._marks.clear()

    def take(self, metrics: Mapping[str, float], step: int, now: float) -> None:
        """Take in the metrics of a step."""
        if self.tells_progress(metrics, step):
            self.reach(step, now)
        self._has_training = self._has_training or is_of_training(metrics)
        for key, value in metrics.items():
            if key in TELLING or key in self.curves or self._has_room_for(key):
                self.curves.setdefault(key, Curve()).add(value)
        phases = {key.removeprefix("timing/"): value for key, value in metrics.items() if key.startswith("timing/")}
        if phases:
            self.phases = phases
        score = metrics.get(BEST)
        if score is not None and not math.isnan(score) and (self.best is None or score > self.best[0]):
            self.best = (score, step)

    def tells_progress(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether the step of a record says how far the run is.

        In a run of a trainer only built-in metrics do: a user may count something else beside them. In a loop of the
        user's own, any record within the steps of the run does.
        """
        total = self.run.total_steps
        is_possible = step >= 0 and (total is None or step <= total)
        return is_of_training(metrics) or (is_possible and not self._has_training)

    def warn(self, text: str) -> None:
        """Count a warning."""
        self.warnings += 1
        self.last_warning = text

    def _has_room_for(self, key: str) -> bool:
        """Whether a user's own metric is shown; built-in ones beside the telling ones are for the trackers."""
        return len(self.curves.keys() - TELLING.keys()) < _MOST_OTHERS and lookup(key) is None

    @property
    def shown(self) -> list[tuple[str, Curve]]:
        """Name and curve of each shown metric, in the order of showing."""
        telling = [(name, self.curves[key]) for key, name in TELLING.items() if key in self.curves]
        return telling + [(key, curve) for key, curve in self.curves.items() if key not in TELLING]

    @property
    def seconds_per_step(self) -> float:
        if len(self._marks) < 2:
            return 0.0
        (first_step, first_time), (last_step, last_time) = self._marks[0], self._marks[-1]
        return max(0.0, last_time - first_time) / (last_step - first_step)

    @property
    def seconds_left(self) -> float | None:
        """Estimate, or None while nothing can be said."""
        if not self.run.total_steps or not self.seconds_per_step:
            return None
        return max(0, self.run.total_steps - self.step) * self.seconds_per_step

    @property
    def phase_shares(self) -> list[tuple[str, float]]:
        """Share of the step per phase, largest first, without what is below one percent."""
        whole = self.phases.get("step") or sum(value for name, value in self.phases.items() if name != "step")
        if not whole > 0:
            return []
        shares = [(name, seconds / whole) for name, seconds in self.phases.items() if name != "step"]
        return sorted((share for share in shares if share[1] >= 0.01), key=lambda share: -share[1])


@dataclass(frozen=True, slots=True)
class TrackerReport:
    """How one tracker fared, for the closing summary.

    Attributes:
        name: Tracker. where: Command or address to look at it, if it has one.
        failures: Failed tries. last_error: Why the last one failed.
        is_complete: Whether everything up to the end reached it.
    """

    name: str
    where: str
    failures: int
    last_error: str
    is_complete: bool


def is_of_training(metrics: Mapping[str, float]) -> bool:
    """Whether a built-in metric is among them: their step is then one of training."""
    return any(lookup(key) is not None for key in metrics)


def checkpoints_in(directory: Path) -> list[str]:
    """Names of the checkpoints of a run, oldest first."""
    found = [path.name for path in (directory / "checkpoints").glob("global_step_*") if path.is_dir()]
    return sorted(found, key=lambda name: int(name.rpartition("_")[2]) if name.rpartition("_")[2].isdigit() else 0)
