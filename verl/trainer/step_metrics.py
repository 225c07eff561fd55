"""From what a step computed to its metrics; the keys are those of the catalogue.

Everything is added with its own weight (trajectories, tokens, optimizer steps, seconds), so a record over
several steps or ranks is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from verl.algorithms.advantages import has_zero_variance
from verl.algorithms.statistics import Moments, explained_variance
from verl.tracing.trajectory import Trajectory
from verl.tracking.catalogue import sanitize_name
from verl.tracking.metrics import MetricBuffer
from verl.trainer.batch import RolloutBatch
from verl.trainer.updates import ActorUpdate, CriticUpdate


def add_rollout_metrics(metrics: MetricBuffer, batch: RolloutBatch) -> None:
    """Rewards and their parts, lengths."""
    trajectories = batch.trajectories
    rewards = Moments.of(batch.rewards_B)
    metrics.add("reward/episode_reward_mean", rewards.mean, rewards.count)
    _add_spread(metrics, "reward/episode_reward_std", rewards)
    metrics.add("reward/episode_reward_min", rewards.minimum)
    metrics.add("reward/episode_reward_max", rewards.maximum)
    for name, values in reward_parts(trajectories).items():
        metrics.add(f"reward/parts/{sanitize_name(name)}", float(np.mean(values)), len(values))
    zero_variance_G = has_zero_variance(batch.rewards_B, batch.group_ids_B)
    metrics.add("reward/group_zero_variance_fraction", zero_variance_G.double().mean().item(), len(zero_variance_G))
    lengths = [len(trajectory.response_ids) for trajectory in trajectories]
    metrics.add("length/prompt_mean", float(np.mean([len(t.prompt_ids) for t in trajectories])), len(trajectories))
    metrics.add("length/response_mean", float(np.mean(lengths)), len(lengths))
    metrics.add("length/response_min", min(lengths))
    metrics.add("length/response_max", max(lengths))
    metrics.add("length/truncated_fraction", float(np.mean([t.is_truncated for t in trajectories])), len(lengths))


def reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Values of each named reward part, over the trajectories that have it."""
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.reward_parts.items():
            parts.setdefault(name, []).append(value)
    return parts


def add_estimate_metrics(
    metrics: MetricBuffer, batch: RolloutBatch, entropy_BT: Tensor, penalty_kl: Moments | None, kl_coef: float
) -> None:
    """Advantages, values, entropy, KL to the reference, and the mismatch of rollout and trainer."""
    assert batch.old_logprobs_BT is not None
    assert batch.advantages_BT is not None
    mask_BT = batch.mask_BT
    advantages = Moments.of(batch.advantages_BT, mask_BT)
    if advantages.count:
        metrics.add("advantage/mean", advantages.mean, advantages.count)
        _add_spread(metrics, "advantage/std", advantages)
        metrics.add("advantage/min", advantages.minimum)
        metrics.add("advantage/max", advantages.maximum)
    _add_mean(metrics, "policy/entropy", Moments.of(entropy_BT, mask_BT))
    mismatch = Moments.of((batch.old_logprobs_BT - batch.rollout_logprobs_BT).abs(), mask_BT)
    _add_mean(metrics, "mismatch/logprob_diff_mean", mismatch)
    if mismatch.count:
        metrics.add("mismatch/logprob_diff_max", mismatch.maximum)
    if batch.ref_logprobs_BT is not None:
        _add_mean(metrics, "kl/kl_divergence", Moments.of(batch.old_logprobs_BT - batch.ref_logprobs_BT, mask_BT))
    if penalty_kl is not None:
        penalty = kl_coef * penalty_kl.mean * penalty_kl.count / len(batch) if penalty_kl.count else 0.0
        metrics.add("kl/reward_penalty", penalty, len(batch))
        metrics.add("kl/coef", kl_coef)
    if batch.values_BT is not None and batch.returns_BT is not None:
        returns = Moments.of(batch.returns_BT, mask_BT)
        _add_mean(metrics, "value/mean", Moments.of(batch.values_BT, mask_BT))
        _add_mean(metrics, "value/return_mean", returns)
        residuals = Moments.of(batch.returns_BT - batch.values_BT, mask_BT)
        metrics.add("value/explained_variance", explained_variance(returns, residuals), returns.count)


def add_actor_metrics(metrics: MetricBuffer, update: ActorUpdate, learning_rate: float) -> None:
    """Losses, gradient norms, ratio and clipping of the policy."""
    for name, values in (
        ("loss/policy_loss", update.policy_losses),
        ("loss/kl_loss", update.kl_losses),
        ("loss/entropy_bonus", update.entropy_bonuses),
        ("grad_norm/actor", update.grad_norms),
    ):
        for value in values:
            metrics.add(name, value)
    if update.statistics is not None:
        ratio = update.statistics.ratio
        _add_mean(metrics, "policy/ratio_mean", ratio)
        if ratio.count:
            metrics.add("policy/ratio_min", ratio.minimum)
            metrics.add("policy/ratio_max", ratio.maximum)
        _add_mean(metrics, "policy/approx_kl", update.statistics.approx_kl)
        _add_mean(metrics, "policy/clip_fraction", update.statistics.clipped)
        _add_mean(metrics, "policy/clip_fraction_lower", update.statistics.clipped_lower)
    metrics.add("lr/actor", learning_rate)


def add_critic_metrics(metrics: MetricBuffer, update: CriticUpdate, learning_rate: float) -> None:
    """Loss, gradient norm and clipping of the critic."""
    for value in update.value_losses:
        metrics.add("loss/value_loss", value)
    for norm in update.grad_norms:
        metrics.add("grad_norm/critic", norm)
    _add_mean(metrics, "value/clip_fraction", update.clipped)
    metrics.add("lr/critic", learning_rate)


def add_timing_metrics(metrics: MetricBuffer, seconds: Mapping[str, float], batch: RolloutBatch) -> None:
    """Seconds of each phase, what was done per second, and what torch holds on the GPU."""
    for phase, value in seconds.items():
        metrics.add(f"timing/{phase}", value)
    tokens = sum(len(t.prompt_ids) + len(t.response_ids) for t in batch.trajectories)
    # Weighted by time, so that several steps give all that was done over all the time it took.
    metrics.add("throughput/rollout_per_second", len(batch) / seconds["rollout"], seconds["rollout"])
    metrics.add("throughput/step_per_second", 1 / seconds["step"], seconds["step"])
    metrics.add("throughput/tokens_per_second", tokens / seconds["step"], seconds["step"])
    device = batch.mask_BT.device
    if device.type == "cuda":
        metrics.add("system/torch_memory_bytes", torch.cuda.memory_allocated(device))


def validation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`val/...` of one validation: over all, and per data source with its reward parts."""
    values = {
        "val/reward_mean": _mean_reward(trajectories),
        "val/length/response_mean": float(np.mean([len(t.response_ids) for t in trajectories])),
        "val/truncated_fraction": float(np.mean([t.is_truncated for t in trajectories])),
    }
    sources: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        sources.setdefault(trajectory.data_source, []).append(trajectory)
    for source, members in sources.items():
        prefix = f"val/{sanitize_name(source)}"
        values[f"{prefix}/reward_mean"] = _mean_reward(members)
        for name, parts in reward_parts(members).items():
            values[f"{prefix}/{sanitize_name(name)}"] = float(np.mean(parts))
    return values


def _mean_reward(trajectories: Sequence[Trajectory]) -> float:
    return float(np.mean([trajectory.reward for trajectory in trajectories if trajectory.reward is not None]))


def _add_spread(metrics: MetricBuffer, key: str, moments: Moments) -> None:
    metrics.add_moments(key, moments.count, moments.mean, moments.sum_squared_deviations)


def _add_mean(metrics: MetricBuffer, key: str, moments: Moments) -> None:
    if moments.count:
        metrics.add(key, moments.mean, moments.count)
