"""Health rules over what the updates do: divergence, entropy, gradients, clipping, numbers that are none.

Thresholds are those of `trainer.health` (`verl.config.schema.HealthConfig`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from verl.config.schema import (
    ClippingConfig,
    EntropyCollapseConfig,
    GradientExplosionConfig,
    KlBlowUpConfig,
    NotFiniteConfig,
)
from verl.tracking.health.rule import HEALTHY, RECENT, EarlyMedian, Finding, Rule, Symptom, finite, median

KL_FLOOR = 0.2
"""Nats per token below which the divergence from the reference is no blow-up, however fast it grew."""

_MOST_NAMED = 5


class _BlowUp(Symptom):
    """The policy runs away, from the reference or within a step."""

    name, title, level = "kl_blow_up", "KL blow-up", "error"
    meaning = "The policy changes faster than it is held: often it has begun to exploit the reward, and texts get odd."
    advice = (
        "Look at samples; try a lower learning rate, a larger KL coefficient (algorithm.kl_ctrl.kl_coef or "
        "actor_rollout_ref.actor.kl_loss_coef), fewer ppo_epochs or smaller clip ranges."
    )


class KlBlowUp(_BlowUp, Rule):
    """The policy runs away from the reference."""

    def __init__(self, config: KlBlowUpConfig, history: int) -> None:
        self._config, self._history = config, history
        self.patience = config.patience
        self._recent: deque[float] = deque(maxlen=RECENT)

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value, config = finite(metrics, "kl/kl_divergence"), self._config
        if value is None:
            return None
        usual = median(self._recent) if len(self._recent) >= self._history else None
        self._recent.append(value)
        if value > config.limit:
            return Finding(f"`kl/kl_divergence` is {value:.3g} nats/token (limit {config.limit:g})")
        if usual is None or value <= KL_FLOOR or value <= config.factor * usual:
            return HEALTHY
        return Finding(
            f"`kl/kl_divergence` is {value:.3g} nats/token, more than {config.factor:g} times its recent median "
            f"{usual:.3g}"
        )


class UpdateBlowUp(_BlowUp, Rule):
    """The policy moves too far within a step."""

    def __init__(self, config: KlBlowUpConfig) -> None:
        self._limit = config.update_limit
        self.patience = config.patience

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "policy/approx_kl")
        if value is None:
            return None
        if value <= self._limit:
            return HEALTHY
        return Finding(f"`policy/approx_kl` is {value:.3g} nats/token (limit {self._limit:g})")


class EntropyCollapse(Rule):
    """The policy always says the same."""

    name, title = "entropy_collapse", "entropy collapse"
    meaning = (
        "The policy is nearly deterministic: samples of a prompt become equal, and nothing new is tried any more. With "
        "the reward near its maximum that is no harm."
    )
    advice = (
        "Try an entropy bonus (actor_rollout_ref.actor.entropy_coeff), a higher clip_ratio_high (0.28), a lower "
        "learning rate, or a KL term; check that rollout.temperature is 1."
    )

    def __init__(self, config: EntropyCollapseConfig, history: int) -> None:
        self._config = config
        self.patience = config.patience
        self._early = EarlyMedian(history)

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "policy/entropy")
        if value is None:
            return None
        self._early.add(value)
        early, config = self._early.value, self._config
        if early is None:
            return None
        if value < config.minimum:
            return Finding(
                f"`policy/entropy` is {value:.3g} nats/token (limit {config.minimum:g}), at first {early:.3g}"
            )
        if value < config.fraction * early:
            percent = 100 * config.fraction
            return Finding(
                f"`policy/entropy` is {value:.3g} nats/token, below {percent:g}% of its early median {early:.3g}"
            )
        return HEALTHY


class GradientExplosion(Rule):
    """Gradient norms far above what they were."""

    name, title, level = "gradient_explosion", "gradient explosion", "error"
    meaning = "The updates have become unstable; clipped gradients of that size point anywhere."
    advice = (
        "Try a lower learning rate, a warm-up (optim.lr_warmup_steps), a smaller grad_clip; look for outliers in "
        "`reward/episode_reward_max`, `advantage/max` and `policy/ratio_max`."
    )

    def __init__(self, config: GradientExplosionConfig, history: int, key: str) -> None:
        self._config, self._history, self._key = config, history, key
        self.patience = config.patience
        self._recent: deque[float] = deque(maxlen=RECENT)

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, self._key)
        if value is None:
            return None
        recent, config = self._recent, self._config
        usual = median(recent) if len(recent) >= self._history else None
        if value > 0:  # a batch of equal groups has no gradient, which says nothing of the usual one
            recent.append(value)
        if usual is None:
            return None
        measure = max(usual, config.minimum)  # of tiny norms any ordinary one is a large multiple
        if value <= config.factor * measure:
            return HEALTHY
        numbers = f"`{self._key}` is {value:.3g}, {value / usual:.3g} times its recent median {usual:.3g}"
        is_urgent = value > config.sudden_factor * measure
        return Finding(numbers, is_urgent, frozenset([self._key]))


class NotFinite(Rule):
    """NaN or infinite metrics."""

    name, title, level = "not_finite", "metrics are not finite", "error"
    meaning = "A loss, gradient or reward has overflowed or is 0/0; weights that took it in are of no use any more."
    advice = (
        "Go on from an earlier checkpoint with a lower learning rate; check that rewards are finite, and try float32 "
        "(model.dtype) if log-probs overflow."
    )

    def __init__(self, config: NotFiniteConfig) -> None:
        self._is_watched = _Matches(config.keys)
        self._ill: set[str] = set()  # keys that must be seen finite before the run counts as healthy

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        bad: dict[str, float] = {}
        if not _are_finite(metrics.values()):
            bad = {key: value for key, value in metrics.items() if _is_not_finite(value) and self._is_watched[key]}
        if not bad:
            return self._recovery(metrics)
        self._ill = self._ill.difference(metrics).union(bad)
        named = ", ".join(f"`{key}` is {value}" for key, value in list(bad.items())[:_MOST_NAMED])
        rest = f", and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        return Finding(named + rest, subjects=frozenset(bad))

    def _recovery(self, metrics: Mapping[str, float]) -> Finding | None:
        if not self._ill:
            return HEALTHY if any(map(self._is_watched.__getitem__, metrics)) else None
        still = self._ill.difference(metrics)
        if not still:  # the keys stay, as it is those that must stay finite for some records
            return HEALTHY
        self._ill = still
        return None


class _Matches(dict[str, bool]):
    """Key -> whether a pattern fits it; worked out once for each."""

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self._patterns = patterns

    def __missing__(self, key: str) -> bool:
        self[key] = fits = any(fnmatchcase(key, pattern) for pattern in self._patterns)
        return fits


def _are_finite(values: Iterable[float]) -> bool:
    try:
        return all(map(math.isfinite, values))
    except OverflowError:  # a whole number larger than any float
        return False


def _is_not_finite(value: float) -> bool:
    return not isinstance(value, int) and not math.isfinite(value)


class Clipping(Rule):
    """Many tokens hit the clip range."""

    name, title = "clipping", "too many tokens are clipped"
    meaning = "The updates of a step go further than the clip range allows, so most of the batch no longer teaches."
    advice = (
        "Try a lower learning rate, fewer ppo_epochs or larger mini-batches; check `mismatch/logprob_diff_mean`, as "
        "different log-probs of rollout and trainer clip, too."
    )

    def __init__(self, config: ClippingConfig) -> None:
        self._limit = config.limit
        self.patience = config.patience

    def look(self, metrics: Mapping[str, float]) -> Finding | None:
        value = finite(metrics, "policy/clip_fraction")
        if value is None:
            return None
        if value <= self._limit:
            return HEALTHY
        return Finding(f"`policy/clip_fraction` is {value:.3g} (limit {self._limit:g}) for {self.patience} records")
