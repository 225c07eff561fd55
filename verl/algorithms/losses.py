"""Token losses of policy and critic, and the entropy of the policy.

They are not aggregated (`aggregation.aggregate` does that) and are 0, without gradient, at masked
positions. To add a policy loss, write one function that returns a `PolicyLoss`.

Shapes: B trajectories, T response tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl.algorithms.masking import boolean_mask, zero_masked
from verl.algorithms.statistics import Moments

LOG_RATIO_LIMIT = 20.0
"""Largest |log-ratio| that enters an exponential: e^20 is 4.9e8, so float32 cannot overflow. A token
beyond it has zero gradient; `policy/ratio_max` then shows 4.9e8 and `policy/ratio_min` 2.1e-9."""


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """What a policy loss tells the metrics; those of micro-batches and ranks add up exactly.

    Attributes:
        ratio: Of pi / pi_old; its mean, minimum and maximum are `policy/ratio_*`.
        approx_kl: Of the estimate of KL(pi_old || pi); its mean is `policy/approx_kl`.
        clipped: Of 0/1, clipped term active; its mean is `policy/clip_fraction`.
        clipped_lower: Of 0/1, dual-clip bound active; its mean is `policy/clip_fraction_lower`.
    """

    ratio: Moments
    approx_kl: Moments
    clipped: Moments
    clipped_lower: Moments

    def __add__(self, other: PolicyStatistics) -> PolicyStatistics:
        return PolicyStatistics(
            ratio=self.ratio + other.ratio,
            approx_kl=self.approx_kl + other.approx_kl,
            clipped=self.clipped + other.clipped,
            clipped_lower=self.clipped_lower + other.clipped_lower,
        )


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of each token, and facts about it; everything but the loss is detached.

    Attributes:
        per_token_BT: Loss; 0 at masked positions.
        mask_BT: 1 where the token is trainable, as given.
        ratio_BT: pi / pi_old; 1 at masked positions.
        is_clipped_BT: The clipped term is the larger one, so the token has no gradient.
        is_clipped_lower_BT: The dual-clip bound is active, so the token has no gradient.
        approx_kl_BT: `ratio - 1 - log ratio`: non-negative estimate of KL(pi_old || pi), unbiased where the
            tokens were sampled from pi_old; 0 at masked positions.
    """

    per_token_BT: Tensor
    mask_BT: Tensor
    ratio_BT: Tensor
    is_clipped_BT: Tensor
    is_clipped_lower_BT: Tensor
    approx_kl_BT: Tensor

    def statistics(self) -> PolicyStatistics:
        """Moments over the trainable tokens, for the metrics (waits for the device)."""
        return PolicyStatistics(
            ratio=Moments.of(self.ratio_BT, self.mask_BT),
            approx_kl=Moments.of(self.approx_kl_BT, self.mask_BT),
            clipped=Moments.of(self.is_clipped_BT, self.mask_BT),
            clipped_lower=Moments.of(self.is_clipped_lower_BT, self.mask_BT),
        )


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """Loss of each token of the critic.

    Attributes:
        per_token_BT: Loss; 0 at masked positions.
        is_clipped_BT: The clipped term is the larger one, so the token has no gradient.
    """

    per_token_BT: Tensor
    is_clipped_BT: Tensor


def ppo_policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
    clip_c: float | None = None,
) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv:1707.06347, equation 7), optionally with dual clip (arXiv:1912.09729).

        L_t = max(-r_t A_t, -clip(r_t, 1 - clip_low, 1 + clip_high) A_t),    r_t = exp(logprob - old logprob)
        dual clip, where A_t < 0:    L_t = min(L_t, -clip_c A_t)

    The log-ratio is clamped to +-`LOG_RATIO_LIMIT`. Where r_t = 1 the gradient is that of REINFORCE.

    Args:
        logprobs_BT: Log-probs of the tokens under the policy; the only input that gets a gradient.
        old_logprobs_BT: Log-probs under the policy that the ratio is taken to (a constant).
        advantages_BT: Advantages (a constant).
        mask_BT: 1 where the token is trainable.
        clip_low: Lower clip range.
        clip_high: Upper clip range.
        clip_c: Dual-clip bound, above 1; nothing = off.
    """
    old_logprobs_BT = zero_masked(old_logprobs_BT.detach(), mask_BT)
    advantages_BT = zero_masked(advantages_BT.detach(), mask_BT)
    log_ratio_BT = zero_masked(logprobs_BT, mask_BT) - old_logprobs_BT
    log_ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_BT = log_ratio_BT.exp()

    unclipped_BT = -ratio_BT * advantages_BT
    clipped_BT = -ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_BT
    is_clipped_BT = clipped_BT > unclipped_BT
    loss_BT = torch.where(is_clipped_BT, clipped_BT, unclipped_BT)

    is_clipped_lower_BT = torch.zeros_like(is_clipped_BT)
    if clip_c is not None:
        bound_BT = -clip_c * advantages_BT
        is_clipped_lower_BT = (advantages_BT < 0) & (loss_BT > bound_BT)
        loss_BT = torch.where(is_clipped_lower_BT, bound_BT, loss_BT)

    return PolicyLoss(
        per_token_BT=loss_BT,
        mask_BT=mask_BT,
        ratio_BT=ratio_BT.detach(),
        is_clipped_BT=is_clipped_BT,
        is_clipped_lower_BT=is_clipped_lower_BT,
        approx_kl_BT=(torch.expm1(log_ratio_BT) - log_ratio_BT).detach(),
    )


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float | None
) -> ValueLoss:
    """Clipped squared error of the critic, as in PPO2 and InstructGPT (arXiv:2203.02155).

        L_t = 1/2 max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2)

    Args:
        values_BT: Values of the critic; the only input that gets a gradient.
        old_values_BT: Its values before the update (a constant).
        returns_BT: Returns to fit (a constant), not normalised.
        mask_BT: 1 where the token is trainable.
        clip: Clip range around the old value; nothing = 1/2 (V - R)^2.
    """
    values_BT = zero_masked(values_BT, mask_BT)
    returns_BT = zero_masked(returns_BT.detach(), mask_BT)
    loss_BT = 0.5 * (values_BT - returns_BT).square()
    if clip is None:
        return ValueLoss(loss_BT, torch.zeros_like(loss_BT, dtype=torch.bool))
    old_values_BT = zero_masked(old_values_BT.detach(), mask_BT)
    clipped_values_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
    clipped_BT = 0.5 * (clipped_values_BT - returns_BT).square()
    # A difference of rounding between equal values is not a clip.
    is_clipped_BT = ((values_BT - old_values_BT).abs() > clip) & (clipped_BT > loss_BT)
    return ValueLoss(torch.where(is_clipped_BT, clipped_BT, loss_BT), is_clipped_BT)


def entropy_from_logits(logits_BTV: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """Entropy of the token distribution in nats, BT: `-sum_v p_v log p_v`.

    A logit of minus infinity (a forbidden token) adds nothing.

    Args:
        logits_BTV: Logits, any leading shape, at the temperature of the sampling.
        mask_BT: Give it where masked positions may hold NaN: their entropy is then 0, without gradient.
    """
    if mask_BT is not None:
        logits_BTV = zero_masked(logits_BTV, boolean_mask(mask_BT).unsqueeze(-1).expand_as(logits_BTV))
    logprobs_BTV = torch.log_softmax(logits_BTV, dim=-1)
    finite_BTV = torch.where(logprobs_BTV == -torch.inf, torch.zeros_like(logprobs_BTV), logprobs_BTV)
    entropy_BT = -(logprobs_BTV.exp() * finite_BTV).sum(dim=-1)
    return entropy_BT if mask_BT is None else zero_masked(entropy_BT, mask_BT)
