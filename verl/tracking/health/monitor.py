"""Watch the metrics as they are logged, and alert people to what is unhealthy: once, with what to try.

    with Tracking("stocks", "first try", health=HealthConfig(stop_on=["not_finite"])) as tracking:
        for step in range(1, 101):
            tracking.log_metrics({"policy/entropy": entropy, "grad_norm/actor": norm}, step)
            tracking.check_health()  # raises HealthStopError if a rule of `stop_on` fired

The rules are in `update_rules.py` and `sample_rules.py`; one whose metrics are not logged is silent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from verl.config.schema import HealthConfig
from verl.errors import VerlError
from verl.tracking.health.rule import Finding, Rule, Symptom
from verl.tracking.health.sample_rules import GroupsEqual, LengthDrift, RewardFlat, Truncation
from verl.tracking.health.stall_watch import StallWatch
from verl.tracking.health.update_rules import (
    Clipping,
    EntropyCollapse,
    GradientExplosion,
    KlBlowUp,
    NotFinite,
    UpdateBlowUp,
)
from verl.tracking.logger import AlertLevel

log = logging.getLogger("verl.tracking")

_MOST_DOUBLINGS = 20


class HealthStopError(VerlError, RuntimeError):
    """A health rule of `trainer.health.stop_on` fired; the message names rule and numbers."""


class HealthMonitor:
    """Gives the alerts of one run.

    Args:
        config: Which rules, their thresholds, and which of them stop the run.
        alert: Takes title, text and level.
        total_steps: The last step, if known: after it no step can stall.
    """

    def __init__(
        self, config: HealthConfig, alert: Callable[[str, str, AlertLevel], None], total_steps: int | None = None
    ) -> None:
        self._config = config
        self._alert = alert
        self._watched: list[_Watched] = []
        self._endings: dict[str, str] = {}
        self.reset()
        is_watched = StallWatch.name not in config.rules_off()
        self._stall_watch: StallWatch | None = None
        if is_watched:
            self._stall_watch = StallWatch(config.stalled_step, self._stalled, self._resumed, total_steps)

    def reset(self) -> None:
        """Begin without a history, as when training goes back to an earlier step."""
        by_name: dict[str, list[_Watched]] = {}
        self._watched = [_Watched(rule, self._config, by_name) for rule in build_rules(self._config)]

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look at a record that was just logged. Costs some microseconds."""
        for watched in self._watched:
            try:
                finding = watched.judge(step, metrics)
            except (ArithmeticError, TypeError, ValueError) as error:  # a metric as no rule foresaw it
                self._watched = [other for other in self._watched if other is not watched]
                log.warning("the health rule %s is off after step %d: %s", watched.rule.name, step, error)
                continue
            if finding is not None:
                self._tell(watched.rule, f"Step {step}: {finding.numbers}")

    def begin_step(self, step: int) -> None:
        """Training is at `step`: what is before it has ended."""
        if self._stall_watch is not None:
            self._stall_watch.beat(step)

    def pause(self) -> AbstractContextManager[None]:
        """A block that is no part of a step, such as validation or a checkpoint, and may take any time."""
        return nullcontext() if self._stall_watch is None else self._stall_watch.pause()

    def check(self) -> None:
        """Raise if a rule of `stop_on` has fired; to be called where the run can end in order.

        Raises:
            HealthStopError: One has; a step that was stalled no longer counts when the last one is done.
        """
        is_complete = self._stall_watch is not None and self._stall_watch.is_at_the_end
        for name, ending in list(self._endings.items()):
            if name != StallWatch.name or not is_complete:
                raise HealthStopError(ending)

    def stop(self) -> None:
        """End the thread."""
        if self._stall_watch is not None:
            self._stall_watch.stop()

    def _tell(self, symptom: Symptom | type[Symptom], found: str) -> None:
        advice = f"{symptom.meaning} {symptom.advice}"
        if symptom.name in self._config.stop_on:
            ending = f"The health rule `{symptom.name}` (trainer.health.stop_on) ended the run. {found}. {advice}"
            self._endings.setdefault(symptom.name, ending)
        self._alert(symptom.title, f"{found}. {advice} (Health rule `{symptom.name}`.)", symptom.level)

    def _stalled(self, found: str) -> None:
        self._tell(StallWatch, found)

    def _resumed(self, text: str) -> None:
        self._alert("training goes on", text, "info")


class _Watched:
    """A rule, and whether people have been told.

    Args:
        rule: The rule.
        config: When to tell again.
        by_name: The rules of each name, which this one joins: what one has told another one need not tell.
    """

    def __init__(self, rule: Rule, config: HealthConfig, by_name: dict[str, list[_Watched]]) -> None:
        self.rule = rule
        self._namesakes = by_name.setdefault(rule.name, [])
        self._namesakes.append(self)
        self._repeat_after, self._recover_after = config.repeat_after, config.recover_after
        self._unhealthy = self._healthy = self._times_told = 0
        self._told_at: int | None = None
        self._told_of: frozenset[str] = frozenset()

    def judge(self, step: int, metrics: Mapping[str, float]) -> Finding | None:
        """What people are to be told about the record, if anything."""
        finding = self.rule.look(metrics)
        if finding is None:
            return None
        if not finding.numbers:
            self._unhealthy = 0
            if self._told_at is not None:
                self._healthy += 1
                # Twice as many after each alert, or a metric that sways around its limit would never be silent.
                if self._healthy >= self._recover_after << min(self._times_told - 1, _MOST_DOUBLINGS):
                    self._told_at, self._told_of = None, frozenset()
            return None
        self._healthy = 0
        self._unhealthy += 1
        if self._unhealthy < self.rule.patience and not finding.is_urgent:
            return None
        told_at = self._told_at
        if told_at is not None and finding.subjects <= self._told_of:
            is_due = abs(step - told_at) >= self._repeat_after and not finding.is_told_once
            if not is_due:
                return None
        told_by_others = [other.told_at_of(step, finding) for other in self._namesakes if other is not self]
        known_since = next((told_at for told_at in told_by_others if told_at is not None), None)
        self._told_at = step if known_since is None else known_since
        self._told_of |= finding.subjects
        self._times_told += 1
        return finding if known_since is None else None

    def told_at_of(self, step: int, finding: Finding) -> int | None:
        """The step at which people were told of the same, if that is not long ago."""
        told_at = self._told_at
        if told_at is None or finding.subjects != self._told_of or abs(step - told_at) >= self._repeat_after:
            return None
        return told_at


def build_rules(config: HealthConfig) -> list[Rule]:
    """The rules over metrics that are on; `stalled_step` has a thread of its own."""
    history = config.history
    rules: list[Rule] = [
        KlBlowUp(config.kl_blow_up, history),
        UpdateBlowUp(config.kl_blow_up),
        EntropyCollapse(config.entropy_collapse, history),
        GradientExplosion(config.gradient_explosion, history, "grad_norm/actor"),
        GradientExplosion(config.gradient_explosion, history, "grad_norm/critic"),
        NotFinite(config.not_finite),
        RewardFlat(config.reward_flat),
        GroupsEqual(config.groups_equal),
        LengthDrift(config.length_drift, history),
        Truncation(config.truncation),
        Clipping(config.clipping),
    ]
    off = config.rules_off()
    return [rule for rule in rules if rule.name not in off]
