"""The optimizer steps of one rollout batch: mini-batches, micro-batches, exact weighting.

Every loss is a sum over tokens divided by counts of the whole mini-batch, so micro-batch size and order
change nothing but rounding. Shapes: B trajectories, T response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from verl.algorithms.aggregation import LossDenominator, aggregate
from verl.algorithms.kl import estimate_kl
from verl.algorithms.losses import PolicyLoss, PolicyStatistics, ppo_policy_loss, value_loss
from verl.algorithms.statistics import Moments
from verl.config.schema import ActorConfig
from verl.models.logprobs import token_logprobs
from verl.models.policy import PolicyModel
from verl.models.value_model import ValueModel, token_values
from verl.trainer.batch import RolloutBatch
from verl.trainer.optimization import Optimization


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch is cut into optimizer steps.

    Attributes:
        epochs: Passes over the batch.
        mini_batch_size: Trajectories per optimizer step.
        micro_batch_size: Trajectories per forward/backward pass; nothing = the whole mini-batch.
        shuffle: Draw a new order in each epoch, from `seed`.
    """

    epochs: int
    mini_batch_size: int
    micro_batch_size: int | None
    shuffle: bool
    seed: int

    def mini_batches(self, num_trajectories: int) -> Iterator[list[int]]:
        """Row indices of each optimizer step; the order is a pure function of the seed."""
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            order = (
                torch.randperm(num_trajectories, generator=generator)
                if self.shuffle
                else torch.arange(num_trajectories)
            )
            for rows in order.split(self.mini_batch_size):
                yield rows.tolist()


@dataclass(slots=True)
class ActorUpdate:
    """What an update of the policy did; lists have one entry per optimizer step.

    Attributes:
        policy_losses, grad_norms: Of each optimizer step.
        kl_losses: The KL term, before its coefficient; empty where it is off.
        entropy_bonuses: The entropy term, times its coefficient; empty where it is off.
        statistics: Of the ratio and its clipping, over all tokens of all optimizer steps; nothing if there were none.
    """

    policy_losses: list[float] = field(default_factory=list)
    kl_losses: list[float] = field(default_factory=list)
    entropy_bonuses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    statistics: PolicyStatistics | None = None


@dataclass(slots=True)
class CriticUpdate:
    """What an update of the critic did; lists have one entry per optimizer step."""

    value_losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    clipped: Moments = field(default_factory=Moments.empty)


def update_actor(
    policy: PolicyModel,
    optimization: Optimization,
    batch: RolloutBatch,
    plan: UpdatePlan,
    config: ActorConfig,
    temperature: float,
    scale_length: int,
) -> ActorUpdate:
    """Takes the optimizer steps of the policy for one batch.

    Args:
        batch: With `old_logprobs_BT`, `advantages_BT`, and `ref_logprobs_BT` if there is a KL loss.
        temperature: As at sampling.
        scale_length: Constant length of `seq-mean-token-sum-norm`, in tokens.
    """
    update = ActorUpdate()
    for rows in plan.mini_batches(len(batch)):
        denominator = LossDenominator.of(batch.mask_BT[rows], scale_length)
        policy_loss = kl_loss = entropy = 0.0
        for micro_rows in batch.micro_batches(rows, plan.micro_batch_size):
            terms = _actor_terms(policy, batch.rows(micro_rows), config, temperature, denominator)
            total = terms.policy
            if terms.kl is not None:
                total = total + config.kl_loss_coef * terms.kl
            if terms.entropy is not None:
                total = total - config.entropy_coeff * terms.entropy
            total.backward()
            kl_loss += 0.0 if terms.kl is None else float(terms.kl.detach())
            entropy += 0.0 if terms.entropy is None else float(terms.entropy.detach())
            policy_loss += float(terms.policy.detach())
            statistics = terms.loss.statistics()  # reads from the device, so only once the backward pass is queued
            update.statistics = statistics if update.statistics is None else update.statistics + statistics
        update.policy_losses.append(policy_loss)
        if config.use_kl_loss:
            update.kl_losses.append(kl_loss)
        if config.entropy_coeff:
            update.entropy_bonuses.append(config.entropy_coeff * entropy)
        update.grad_norms.append(optimization.apply())
    return update


@dataclass(frozen=True, slots=True)
class _ActorTerms:
    """Shares of one micro-batch in the terms of the loss."""

    policy: Tensor
    kl: Tensor | None
    entropy: Tensor | None
    loss: PolicyLoss


def _actor_terms(
    policy: PolicyModel, batch: RolloutBatch, config: ActorConfig, temperature: float, denominator: LossDenominator
) -> _ActorTerms:
    assert batch.old_logprobs_BT is not None
    assert batch.advantages_BT is not None
    scored = token_logprobs(policy, batch.model_batch(), temperature, entropy_gradient=config.entropy_coeff != 0.0)
    loss = ppo_policy_loss(
        scored.logprobs_BT,
        batch.old_logprobs_BT,
        batch.advantages_BT,
        batch.mask_BT,
        clip_low=config.clip_ratio_low,
        clip_high=config.clip_ratio_high,
        clip_c=config.clip_ratio_c,
    )

    def share(values_BT: Tensor) -> Tensor:
        return aggregate(values_BT, batch.mask_BT, config.loss_agg_mode, denominator)

    kl = None
    if config.use_kl_loss:
        assert batch.ref_logprobs_BT is not None, "use_kl_loss needs the reference"
        kl = share(estimate_kl(scored.logprobs_BT, batch.ref_logprobs_BT, batch.mask_BT, config.kl_loss_type))
    entropy = share(scored.entropy_BT) if config.entropy_coeff else None
    return _ActorTerms(share(loss.per_token_BT), kl, entropy, loss)


def update_critic(
    critic: ValueModel, optimization: Optimization, batch: RolloutBatch, plan: UpdatePlan, clip: float | None
) -> CriticUpdate:
    """Takes the optimizer steps of the critic for one batch with `values_BT` and `returns_BT`."""
    update = CriticUpdate()
    for rows in plan.mini_batches(len(batch)):
        denominator = LossDenominator.of(batch.mask_BT[rows])
        total = 0.0
        for micro_rows in batch.micro_batches(rows, plan.micro_batch_size):
            part = batch.rows(micro_rows)
            assert part.values_BT is not None
            assert part.returns_BT is not None
            values_BT = token_values(critic, part.model_batch())
            loss = value_loss(values_BT, part.values_BT, part.returns_BT, part.mask_BT, clip)
            share = aggregate(loss.per_token_BT, part.mask_BT, "token-mean", denominator)
            share.backward()
            total += float(share.detach())
            update.clipped = update.clipped + Moments.of(loss.is_clipped_BT, part.mask_BT)
        update.value_losses.append(total)
        update.grad_norms.append(optimization.apply())
    return update
