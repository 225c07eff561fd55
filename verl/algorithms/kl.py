"""KL to the reference policy: estimators from samples, the exact sum, the reward penalty, controllers.

To add an estimator, write one function of the log-ratio and name it in `_ESTIMATORS`.

Shapes: B trajectories, T response tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from verl.algorithms.losses import LOG_RATIO_LIMIT
from verl.algorithms.masking import boolean_mask, zero_masked
from verl.config.schema import KlControlConfig
from verl.errors import CheckpointError, ConfigError, VerlError

KlEstimator = Literal["k1", "k2", "k3", "abs"]


def estimate_kl(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(pi || ref) from tokens sampled from pi (joschu.net/blog/kl-approx.html).

    With x = log pi - log ref:

        name  formula          expectation          gradient as a loss     gradient as a reward penalty
        k1    x                KL(pi || ref)        0 (useless)            KL(pi || ref) (right)
        k2    x^2 / 2          biased               KL(pi || ref) (right)  wrong
        k3    exp(-x) - 1 + x  KL(pi || ref), >= 0  KL(ref || pi)          KL(pi || ref) - KL(ref || pi)
        abs   |x|              biased, >= 0         neither                wrong

    "As a loss" means that it is added to the loss and differentiated through `logprobs_BT` on samples
    from pi; the numbers hold exactly when pi is the sampling policy. k3 clamps x to +-20 before the
    exponential (zero gradient beyond); nothing else is clamped.

    Args:
        logprobs_BT: Log-probs under the policy; gets the gradient.
        ref_logprobs_BT: Log-probs under the reference (a constant).
        mask_BT: 1 where the token is trainable.
        estimator: One of the names above.

    Returns:
        Estimates BT in nats, 0 without gradient at masked positions.

    Raises:
        ConfigError: The estimator is unknown.
    """
    if estimator not in _ESTIMATORS:
        raise ConfigError(f"the KL estimator is {estimator!r}; allowed are {', '.join(_ESTIMATORS)}")
    log_ratio_BT = zero_masked(logprobs_BT, mask_BT) - zero_masked(ref_logprobs_BT.detach(), mask_BT)
    return _ESTIMATORS[estimator](log_ratio_BT)


def _k1(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT


def _k2(log_ratio_BT: Tensor) -> Tensor:
    return 0.5 * log_ratio_BT.square()


def _k3(log_ratio_BT: Tensor) -> Tensor:
    clamped_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(-clamped_BT) + clamped_BT


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3, "abs": torch.abs}


def full_kl(logits_BTV: Tensor, ref_logits_BTV: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """Exact KL(pi || ref) of each token distribution in nats, BT: `sum_v pi_v (log pi_v - log ref_v)`.

    Where pi forbids a token (logit minus infinity) it adds nothing; where only the reference does, the
    KL is infinite.

    Args:
        logits_BTV: Logits of the policy; gets the gradient.
        ref_logits_BTV: Logits of the reference (a constant).
        mask_BT: Give it where masked positions may hold NaN: their KL is then 0, without gradient.
    """
    ref_logits_BTV = ref_logits_BTV.detach()
    if mask_BT is not None:
        mask_BTV = boolean_mask(mask_BT).unsqueeze(-1).expand_as(logits_BTV)
        logits_BTV, ref_logits_BTV = zero_masked(logits_BTV, mask_BTV), zero_masked(ref_logits_BTV, mask_BTV)
    logprobs_BTV = torch.log_softmax(logits_BTV, dim=-1)
    difference_BTV = logprobs_BTV - torch.log_softmax(ref_logits_BTV, dim=-1)
    forbidden_BTV = logprobs_BTV == -torch.inf
    difference_BTV = torch.where(forbidden_BTV, torch.zeros_like(difference_BTV), difference_BTV)
    kl_BT = (logprobs_BTV.exp() * difference_BTV).sum(dim=-1)
    return kl_BT if mask_BT is None else zero_masked(kl_BT, mask_BT)


@torch.no_grad()
def kl_penalised_rewards(token_rewards_BT: Tensor, kl_BT: Tensor, mask_BT: Tensor, coef: float) -> Tensor:
    """Token rewards minus `coef * kl` (arXiv:1909.08593), BT, 0 at masked positions, no gradient.

    Args:
        token_rewards_BT: Rewards, as `terminal_token_rewards` gives them.
        kl_BT: KL of each token, as `estimate_kl` gives it; k1 is the estimator with the right gradient.
        mask_BT: 1 where the token is trainable.
        coef: Coefficient, from a controller.
    """
    return zero_masked(token_rewards_BT, mask_BT) - coef * zero_masked(kl_BT, mask_BT)


class KlController(Protocol):
    """Decides the coefficient of the KL penalty; its state belongs into the checkpoint."""

    @property
    def coef(self) -> float:
        """The coefficient to use now."""
        ...

    def update(self, current_kl: float, num_trajectories: int) -> None:
        """Takes in the KL of a step: mean over its trainable tokens, in nats, and its trajectories."""
        ...

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continues from `state_dict()`."""
        ...


class FixedKlController:
    """The coefficient of the configuration, always: a resumed run may change it there.

    Args:
        coef: The coefficient.
    """

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, current_kl: float, num_trajectories: int) -> None:
        """Changes nothing."""

    def state_dict(self) -> dict[str, float]:
        """The coefficient, for an adaptive controller that a resumed run may switch to."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Changes nothing: the configuration decides."""


class AdaptiveKlController:
    """Moves the coefficient so that the KL stays near a target (Ziegler et al., arXiv:1909.08593, section 2.2).

        error = clip(current_kl / target - 1, -0.2, 0.2),    coef <- coef (1 + error * min(n / horizon, 1))

    The unit of KL and target is nats per token, the mean over trainable tokens. The paper's target of 6 is
    the *sum over the tokens of a sequence*; divide such a number by the mean response length. The minimum
    keeps the coefficient positive when a step has more trajectories than the horizon. A coefficient of 0
    stays 0.

    Args:
        coef: Initial coefficient.
        target: Target KL, above 0.
        horizon: Trajectories over which an error of 0.2 moves the coefficient by a fifth, above 0.

    Raises:
        ConfigError: Target or horizon is not above 0.
    """

    def __init__(self, coef: float, target: float, horizon: float) -> None:
        if not (target > 0 and horizon > 0):
            raise ConfigError(f"target_kl and horizon must be above 0, got target_kl={target}, horizon={horizon}")
        self.coef = coef
        self._target = target
        self._horizon = horizon

    def update(self, current_kl: float, num_trajectories: int) -> None:
        """Moves the coefficient after a step.

        Raises:
            VerlError: The KL is NaN, which would stay in the coefficient for ever.
        """
        if math.isnan(current_kl):
            raise VerlError(
                "the KL to the reference is NaN, so the adaptive coefficient cannot follow it: the policy or the "
                "reference gives NaN log-probs; look at grad_norm/actor and loss/policy_loss of the steps before"
            )
        error = min(max(current_kl / self._target - 1.0, -0.2), 0.2)
        self.coef *= 1.0 + error * min(num_trajectories / self._horizon, 1.0)

    def state_dict(self) -> dict[str, float]:
        """The coefficient; target and horizon are the configuration's."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continues from the coefficient of `state_dict()`.

        Raises:
            CheckpointError: The state holds no usable coefficient.
        """
        coef = state.get("coef", math.nan)
        if not 0.0 <= coef < math.inf:
            raise CheckpointError(f"the state of the KL controller is {dict(state)}; it needs a finite coef >= 0")
        self.coef = coef


def build_kl_controller(config: KlControlConfig) -> KlController:
    """The controller that `algorithm.kl_ctrl` asks for."""
    if config.type == "adaptive":
        return AdaptiveKlController(coef=config.kl_coef, target=config.target_kl, horizon=config.horizon)
    return FixedKlController(coef=config.kl_coef)
