"""Health rules over what is sampled: rewards, groups, lengths.

Thresholds are those of `trainer.health` (`verl.config.schema.HealthConfig`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

from verl.config.schema import GroupsEqualConfig, LengthDriftConfig, RewardFlatConfig, TruncationConfig
from verl.tracking.health.rule import HEALTHY, EarlyMedian, Finding, Rule, finite

_ROUNDING = 1e-6
"""Relative movement that rounding of 32 bits makes."""

_ERRORS_OF_A_RISE = 2.0
_ERRORS_OF_A_LATE_RISE = 4.0
"""Standard errors of the difference of two means that make a rise."""


class RewardFlat(Rule):
    """The mean reward does not move, or never rose."""

    name, title = "reward_flat", "the reward is flat"
    meaning = (
        "Nothing is learned: the reward gives no credit (too hard, answers not recognised), or there is nothing left "
        "to learn (solved), or the updates are too small."
    )
    advice = (
        "Read samples with their rewards; check the reward function on a right answer; take easier or harder prompts, "
        "more samples per prompt (rollout.n), or a higher learning rate."
    )

    def __init__(self, config: RewardFlatConfig) -> None:
        self._config = config
        self._window: deque[float] = deque(maxlen=config.window)
        self._usual_spread: float | None = None
        self._count = 0
        self._end = (config.no_progress_after or 0) // 4
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self._end)
        self._first_moments = (0.0, 0.0)
        self._has_risen = True

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "reward/episode_reward_mean")
        if value is None:
            return None
        window, config = self._window, self._config
        window.append(value)
        self._last.append(value)
        self._count += 1
        if self._count <= self._end:
            self._first.append(value)
            self._first_moments = _mean_and_spread(self._first)
        if len(window) < config.window:
            return None
        if self._usual_spread is None:
            self._usual_spread = _middle_half(window)
        lowest, highest = min(window), max(window)
        still = max(config.tolerance * self._usual_spread, _ROUNDING * max(abs(lowest), abs(highest)))
        if highest - lowest <= still:
            return Finding(
                f"`reward/episode_reward_mean` stays between {lowest:.4g} and {highest:.4g} for {config.window} records"
            )
        if config.no_progress_after is None or self._count < config.no_progress_after:
            return HEALTHY
        return self._progress()

    def _progress(self) -> Finding:
        """It has risen if by more than noise does; once it has not, by so much more that noise cannot end it."""
        (first, first_spread), (last, last_spread) = self._first_moments, _mean_and_spread(self._last)
        errors = _ERRORS_OF_A_RISE if self._has_risen else _ERRORS_OF_A_LATE_RISE
        self._has_risen = last - first > errors * math.sqrt(first_spread + last_spread) / self._end
        if self._has_risen:
            return HEALTHY
        return Finding(
            f"`reward/episode_reward_mean` has not risen in {self._count} records: {first:.4g} over the first "
            f"{self._end}, {last:.4g} over the last {self._end}",
            is_told_once=True,
        )


def _middle_half(values: Collection[float]) -> float:
    """How far the quartiles are apart, which a few outliers, such as a jump at the start, do not change."""
    ordered = sorted(values)
    return ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]


def _mean_and_spread(values: Collection[float]) -> tuple[float, float]:
    """Mean, and sum of squared deviations from it."""
    mean = sum(values) / len(values)
    return mean, sum([(value - mean) ** 2 for value in values])


class GroupsEqual(Rule):
    """Nearly all groups have equal rewards."""

    name, title = "groups_equal", "all groups are equal"
    meaning = (
        "Within each group all rewards are the same, so group-relative advantages are zero and nothing is learned."
    )
    advice = (
        "Take prompts that the policy solves sometimes but not always, more samples per prompt (rollout.n), a reward "
        "with finer grades; check the entropy."
    )

    def __init__(self, config: GroupsEqualConfig) -> None:
        self._limit = config.limit
        self.patience = config.patience

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "reward/group_zero_variance_fraction")
        if value is None:
            return None
        if value < self._limit:
            return HEALTHY
        return Finding(
            f"`reward/group_zero_variance_fraction` is {value:.3g} (limit {self._limit:g}) for {self.patience} records"
        )


class LengthDrift(Rule):
    """Responses grow or shrink far from their early length."""

    name, title = "length_drift", "response length drifts"
    meaning = (
        "The reward pays for length or for brevity, or the policy forgets to stop; growth together with a rising "
        "reward may be fine."
    )
    advice = (
        "Read samples; look whether the reward depends on length; try a length penalty, another loss_agg_mode "
        "(seq-mean-token-mean favours long wrong answers), or a KL term."
    )

    def __init__(self, config: LengthDriftConfig, history: int) -> None:
        self._config = config
        self.patience = config.patience
        self._early = EarlyMedian(history)

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "length/response_mean")
        if value is None:
            return None
        self._early.add(value)
        early, config = self._early.value, self._config
        if early is None or early <= 0:
            return None
        if config.shrinkage * early <= value <= config.growth * early:
            return HEALTHY
        return Finding(
            f"`length/response_mean` is {value:.4g} tokens, {value / early:.2g} times its early median {early:.4g} "
            f"(healthy: {config.shrinkage:g} to {config.growth:g} times)"
        )


class Truncation(Rule):
    """Many responses are cut by the token limit."""

    name, title = "truncation", "responses are truncated"
    meaning = "Responses reach the token limit before their end, so many are judged without their answer."
    advice = (
        "Raise data.max_response_length, set rollout.stop, ask for short answers in the prompt, or penalise length."
    )

    def __init__(self, config: TruncationConfig) -> None:
        self._limit = config.limit
        self.patience = config.patience

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "length/truncated_fraction")
        if value is None:
            return None
        if value <= self._limit:
            return HEALTHY
        return Finding(
            f"`length/truncated_fraction` is {value:.3g} (limit {self._limit:g}) for {self.patience} records"
        )
