"""Advantage estimators, and what prepares their inputs and normalises their outputs.

All give constants: no gradient flows through an advantage. To add an estimator, write one function
here: `..._B` rewards to `..._B` advantages (then `spread_over_tokens`), or token rewards to `..._BT`.

Shapes: B trajectories, T response tokens, G groups (the trajectories of one prompt).
"""

from __future__ import annotations

import torch
from torch import Tensor

from verl.algorithms.masking import boolean_mask, zero_masked
from verl.algorithms.statistics import Moments


@torch.no_grad()
def gae(
    token_rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    gamma: float,
    lam: float,
    bootstrap_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv:1506.02438) in which only trainable tokens are steps.

        delta_t = r_t + gamma V_next - V_t,    A_t = delta_t + gamma lam A_next,    R_t = A_t + V_t

    "next" is the next *trainable* token: across a tool call both are carried through unchanged, without
    discount, and rewards or values at masked positions are ignored. So the reward must sit on a
    trainable token (`terminal_token_rewards`).

    Args:
        token_rewards_BT: Reward of each token.
        values_BT: Critic's value of the state *before* each token.
        mask_BT: 1 where the token is trainable.
        gamma: Discount per trainable token.
        lam: GAE lambda.
        bootstrap_B: Value after the last trainable token. Give the critic's value where a trajectory was
            truncated and is to count as unfinished, and 0 where it ended. Nothing = 0 for all, also for
            the truncated: running out of tokens then counts as the end.

    Returns:
        Advantages (not normalised) and returns, both BT, 0 at masked positions, float32 or wider.
    """
    mask_TB = boolean_mask(mask_BT).T.contiguous()
    dtype = torch.promote_types(torch.promote_types(token_rewards_BT.dtype, values_BT.dtype), torch.float32)
    rewards_TB = zero_masked(token_rewards_BT, mask_BT).T.to(dtype).contiguous()
    values_TB = zero_masked(values_BT, mask_BT).T.to(dtype).contiguous()
    next_advantage_B = values_TB.new_zeros(mask_BT.shape[0])
    next_value_B = torch.zeros_like(next_advantage_B) if bootstrap_B is None else bootstrap_B.to(dtype)
    advantages_TB = torch.zeros_like(values_TB)
    for t in reversed(range(mask_TB.shape[0])):
        delta_B = rewards_TB[t] + gamma * next_value_B - values_TB[t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        next_advantage_B = torch.where(mask_TB[t], advantage_B, next_advantage_B)
        next_value_B = torch.where(mask_TB[t], values_TB[t], next_value_B)
        advantages_TB[t] = advantage_B
    advantages_BT = zero_masked(advantages_TB.T.contiguous(), mask_BT)
    return advantages_BT, advantages_BT + values_TB.T


@torch.no_grad()
def grpo(rewards_B: Tensor, group_ids_B: Tensor, norm_by_std: bool, epsilon: float = 1e-6) -> Tensor:
    """Group-relative advantages (arXiv:2402.03300): `(R - mean_group) / (std_group + epsilon)`.

    The standard deviation has ddof=1. Rewards that are all equal give exactly 0, whatever the rounding
    of their mean, and so does a group of one: it says nothing about better or worse. (Elsewhere such a
    group gets its raw reward as advantage, which pushes with an unbaselined, unscaled weight.)

    Args:
        rewards_B: Reward of each trajectory.
        group_ids_B: Integer of its group (prompt); trajectories of a group may stand in any order.
        norm_by_std: Divide by the standard deviation; without, this is Dr. GRPO's advantage
            (arXiv:2503.20783).
        epsilon: Added to the standard deviation.

    Returns:
        Advantages B, in the dtype of the rewards (float32 for integers).
    """
    group_B, count_G = _groups(rewards_B, group_ids_B)
    rewards = rewards_B.double()
    # Taken from the smallest reward, so that equal rewards have a deviation of exactly zero.
    minimum_G = rewards.new_zeros(len(count_G)).scatter_reduce(0, group_B, rewards, "amin", include_self=False)
    above_minimum_B = rewards - minimum_G[group_B]
    mean_G = _group_sum(above_minimum_B, group_B, len(count_G)) / count_G
    advantages_B = above_minimum_B - mean_G[group_B]
    if norm_by_std:
        variance_G = _group_sum(advantages_B.square(), group_B, len(count_G)) / (count_G - 1).clamp_min(1)
        advantages_B = advantages_B / (variance_G.sqrt() + epsilon)[group_B]
    return advantages_B.to(torch.promote_types(rewards_B.dtype, torch.float32))


def has_zero_variance(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """Which groups teach nothing because their rewards are all equal (a group of one too), boolean G.

    Groups are in the order of their ids. Its mean is `reward/group_zero_variance_fraction`.
    """
    group_B, count_G = _groups(rewards_B, group_ids_B)
    zeros_G = rewards_B.new_zeros(len(count_G))
    minimum_G = zeros_G.scatter_reduce(0, group_B, rewards_B, "amin", include_self=False)
    maximum_G = zeros_G.scatter_reduce(0, group_B, rewards_B, "amax", include_self=False)
    return minimum_G == maximum_G


def terminal_token_rewards(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Token rewards BT with each trajectory's reward on its last *trainable* token, 0 elsewhere.

    A reward on a later masked token (tool output, padding) would be ignored. A trajectory without
    trainable token has nowhere to put it and gets zeros.
    """
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B = torch.where(boolean_mask(mask_BT), positions_T, -1).amax(dim=1)
    is_last_BT = positions_T == last_B.unsqueeze(1)
    return zero_masked(rewards_B.unsqueeze(1).expand(mask_BT.shape), is_last_BT)


def spread_over_tokens(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Gives every trainable token the value of its trajectory (BT, 0 at masked positions)."""
    return zero_masked(values_B.unsqueeze(1).expand(mask_BT.shape), mask_BT)


@torch.no_grad()
def whiten(advantages_BT: Tensor, mask_BT: Tensor, moments: Moments | None = None, epsilon: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and variance 1 over the trainable tokens: `(A - mean) / sqrt(var + epsilon)`.

    The variance has ddof=1. Equal advantages give exactly 0.

    Args:
        advantages_BT: Advantages, as `gae` gives them.
        mask_BT: 1 where the token is trainable.
        moments: Moments of the global batch, where these rows are only a part of it (one rank);
            nothing = these rows are the batch.
        epsilon: Added to the variance.
    """
    moments = Moments.of(advantages_BT, mask_BT) if moments is None else moments
    if moments.count == 0:
        return torch.zeros_like(advantages_BT)
    scale = (moments.variance(ddof=1) + epsilon) ** -0.5
    whitened_BT = (advantages_BT.double() - moments.mean) * scale
    return zero_masked(whitened_BT, mask_BT).to(advantages_BT.dtype)


def _groups(rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, Tensor]:
    if rewards_B.shape != group_ids_B.shape or rewards_B.dim() != 1:
        raise ValueError(
            f"rewards {tuple(rewards_B.shape)} and group ids {tuple(group_ids_B.shape)} must be vectors of "
            "one length: one reward and one group per trajectory"
        )
    _, group_B, count_G = torch.unique(group_ids_B, return_inverse=True, return_counts=True)
    return group_B, count_G


def _group_sum(values_B: Tensor, group_B: Tensor, num_groups: int) -> Tensor:
    return values_B.new_zeros(num_groups).index_add(0, group_B, values_B)
