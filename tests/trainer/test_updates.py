"""Updates: losses, gradients and metrics do not depend on micro-batches, order or padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from verl.config.schema import ActorConfig, AlgorithmConfig, CriticConfig, ModelConfig, OptimConfig
from verl.models.loading import load_critic
from verl.tracking.metrics import MetricBuffer
from verl.trainer.batch import RolloutBatch
from verl.trainer.estimation import estimate_advantages
from verl.trainer.optimization import Optimization
from verl.trainer.scoring import score_logprobs, score_values
from verl.trainer.step_metrics import add_actor_metrics, add_estimate_metrics, add_rollout_metrics
from verl.trainer.updates import UpdatePlan, update_actor, update_critic

CPU = torch.device("cpu")
GROUPS = [0, 0, 1, 1, 2, 2]


def prepared(policy, trajectories, micro=None, critic=None) -> RolloutBatch:
    groups = [trajectory.sample_index for trajectory in trajectories]
    batch = RolloutBatch.of(trajectories, groups, CPU)
    logprobs_BT = score_logprobs(policy, batch, 1.0, micro).logprobs_BT
    # An old policy and a reference that differ a little, so that ratio, clipping and KL are in play.
    batch = replace(
        batch, old_logprobs_BT=logprobs_BT + 0.3 * batch.rollout_logprobs_BT, ref_logprobs_BT=logprobs_BT - 0.1
    )
    if critic is None:
        return estimate_advantages(batch, AlgorithmConfig(adv_estimator="grpo"), 0.0).batch
    batch = replace(batch, values_BT=score_values(critic, batch, micro))
    return estimate_advantages(batch, AlgorithmConfig(adv_estimator="gae", lam=0.9), 0.0).batch


def actor_metrics(make_policy, trajectories, micro, mode) -> tuple[dict[str, float], torch.Tensor]:
    policy = make_policy()
    batch = prepared(policy, trajectories, micro)
    config = ActorConfig(
        use_kl_loss=True, kl_loss_coef=0.1, entropy_coeff=0.01, clip_ratio_c=3.0, loss_agg_mode=mode, grad_clip=1e9
    )
    optimization = Optimization(policy.network, OptimConfig(lr=1e-4), 1, config.grad_clip)
    plan = UpdatePlan(epochs=2, mini_batch_size=6, micro_batch_size=micro, shuffle=False, seed=0)
    update = update_actor(policy, optimization, batch, plan, config, temperature=1.0, scale_length=8)
    metrics = MetricBuffer()
    add_actor_metrics(metrics, update, 1e-2)
    add_rollout_metrics(metrics, batch)
    add_estimate_metrics(metrics, batch, torch.zeros_like(batch.mask_BT, dtype=torch.float32), None, 0.0)
    return metrics.reduce(), torch.cat([parameter.detach().flatten() for parameter in policy.network.parameters()])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_micro_batches_change_neither_metrics_nor_the_gradient(make_policy, trajectories, mode):
    whole, weights = actor_metrics(make_policy, trajectories, None, mode)
    for micro in (1, 2, 4):
        parts, other = actor_metrics(make_policy, trajectories, micro, mode)
        assert parts == pytest.approx(whole, rel=2e-5, abs=1e-6), f"micro_batch_size={micro}"
        assert (other - weights).abs().max() < 2e-5  # Adam divides by the gradient: rounding of tiny ones shows
    assert whole["policy/ratio_max"] > 1.2
    assert whole["loss/kl_loss"] > 0.0


def test_the_order_of_the_trajectories_changes_no_metric(make_policy, trajectories):
    expected, _ = actor_metrics(make_policy, trajectories, None, "token-mean")
    turned, _ = actor_metrics(make_policy, trajectories[::-1], 4, "token-mean")
    assert turned == pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_junk_at_masked_positions_changes_nothing(make_policy, trajectories):
    policy = make_policy()
    batch = prepared(policy, trajectories)
    junk = torch.where(batch.mask_BT, 0.0, float("nan"))
    dirty = replace(
        batch,
        old_logprobs_BT=batch.old_logprobs_BT + junk,
        ref_logprobs_BT=batch.ref_logprobs_BT + junk,
        advantages_BT=batch.advantages_BT + junk,
        rollout_logprobs_BT=batch.rollout_logprobs_BT + junk,
    )
    norms = []
    for candidate in (batch, dirty):
        fresh = make_policy()
        config = ActorConfig(use_kl_loss=True)
        optimization = Optimization(fresh.network, OptimConfig(), 1, 1.0)
        plan = UpdatePlan(1, 6, None, shuffle=False, seed=0)
        update = update_actor(fresh, optimization, candidate, plan, config, 1.0, 8)
        norms.append((update.grad_norms, update.policy_losses, update.kl_losses))
    assert norms[0] == norms[1]


def test_equal_rewards_give_no_policy_gradient(make_policy, trajectories):
    for trajectory in trajectories:
        trajectory.reward = 0.1
    policy = make_policy()
    batch = prepared(policy, trajectories)
    optimization = Optimization(policy.network, OptimConfig(), 1, 1.0)
    update = update_actor(policy, optimization, batch, UpdatePlan(1, 6, 2, True, 0), ActorConfig(), 1.0, 8)
    assert update.grad_norms == [0.0]


def test_on_policy_ratio_is_one_and_the_first_loss_is_minus_the_mean_advantage(make_policy, trajectories):
    policy = make_policy()
    batch = prepared(policy, trajectories)
    batch = replace(batch, old_logprobs_BT=score_logprobs(policy, batch, 1.0, None).logprobs_BT)
    optimization = Optimization(policy.network, OptimConfig(), 1, 1.0)
    update = update_actor(policy, optimization, batch, UpdatePlan(1, 6, None, False, 0), ActorConfig(), 1.0, 8)
    assert batch.advantages_BT is not None
    assert update.policy_losses[0] == pytest.approx(-batch.advantages_BT[batch.mask_BT].mean().item(), abs=1e-6)
    assert update.statistics is not None
    assert update.statistics.ratio.minimum == pytest.approx(1.0, abs=1e-5)
    assert update.statistics.clipped.mean == 0.0


def test_micro_batches_do_not_change_the_critic(make_policy, trajectories, model_folder):
    results = []
    for micro in (None, 1, 4):
        critic = load_critic(CriticConfig(), ModelConfig(path=str(model_folder)), CPU)
        torch.manual_seed(5)
        torch.nn.init.normal_(critic.value_head.weight, std=0.5)
        batch = prepared(make_policy(), trajectories, micro, critic)
        optimization = Optimization(critic, OptimConfig(lr=1e-3), 1, 1.0)
        update = update_critic(critic, optimization, batch, UpdatePlan(2, 6, micro, False, 0), clip=0.2)
        results.append([*update.value_losses, *update.grad_norms, update.clipped.mean])
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert results[2] == pytest.approx(results[0], rel=1e-4)


def test_mini_batches_cover_every_trajectory_once_per_epoch_in_a_reproducible_order():
    plan = UpdatePlan(epochs=3, mini_batch_size=4, micro_batch_size=None, shuffle=True, seed=11)
    steps = list(plan.mini_batches(10))
    assert [len(rows) for rows in steps] == [4, 4, 2] * 3
    epochs = [[row for rows in steps[start : start + 3] for row in rows] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert steps == list(plan.mini_batches(10))
