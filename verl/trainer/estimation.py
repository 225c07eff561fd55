"""From rewards to advantages: KL penalty, estimator, normalisation.

To add an estimator, write a function of `EstimatorInputs` and name it in `_ESTIMATORS`.

Shapes: B trajectories, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from verl.algorithms.advantages import gae, grpo, spread_over_tokens, terminal_token_rewards, whiten
from verl.algorithms.kl import estimate_kl, kl_penalised_rewards
from verl.algorithms.statistics import Moments
from verl.config.schema import AlgorithmConfig
from verl.trainer.batch import RolloutBatch


@dataclass(frozen=True, slots=True)
class EstimatorInputs:
    """What an advantage estimator may use.

    Attributes:
        batch: Masks, groups, values (where there is a critic).
        token_rewards_BT: Rewards per token, KL penalty subtracted; 0 at masked positions.
        config: `algorithm`.
    """

    batch: RolloutBatch
    token_rewards_BT: Tensor
    config: AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Estimate:
    """The batch with advantages (and returns), and the KL penalty that went into the rewards.

    Attributes:
        penalty_kl: Moments over the trainable tokens of the KL in the reward; nothing without that penalty.
    """

    batch: RolloutBatch
    penalty_kl: Moments | None


def estimate_advantages(batch: RolloutBatch, config: AlgorithmConfig, kl_coef: float) -> Estimate:
    """Fills in `advantages_BT`, and `returns_BT` where the estimator has a critic."""
    token_rewards_BT = terminal_token_rewards(batch.rewards_B, batch.mask_BT)
    penalty_kl = None
    if config.use_kl_in_reward:
        assert batch.old_logprobs_BT is not None
        assert batch.ref_logprobs_BT is not None, "use_kl_in_reward needs the reference"
        kl_BT = estimate_kl(batch.old_logprobs_BT, batch.ref_logprobs_BT, batch.mask_BT, config.kl_penalty)
        token_rewards_BT = kl_penalised_rewards(token_rewards_BT, kl_BT, batch.mask_BT, kl_coef)
        penalty_kl = Moments.of(kl_BT, batch.mask_BT)
    estimator = _ESTIMATORS[config.adv_estimator]
    advantages_BT, returns_BT = estimator(EstimatorInputs(batch, token_rewards_BT, config))
    return Estimate(replace(batch, advantages_BT=advantages_BT, returns_BT=returns_BT), penalty_kl)


def needs_critic(config: AlgorithmConfig) -> bool:
    """Whether the estimator takes values of a critic."""
    return config.adv_estimator == "gae"


def _gae(inputs: EstimatorInputs) -> tuple[Tensor, Tensor | None]:
    batch, config = inputs.batch, inputs.config
    assert batch.values_BT is not None, "gae needs a critic"
    advantages_BT, returns_BT = gae(
        inputs.token_rewards_BT, batch.values_BT, batch.mask_BT, gamma=config.gamma, lam=config.lam
    )
    if config.whiten_advantages:
        advantages_BT = whiten(advantages_BT, batch.mask_BT)
    return advantages_BT, returns_BT


def _grpo(inputs: EstimatorInputs) -> tuple[Tensor, Tensor | None]:
    scores_B = inputs.token_rewards_BT.sum(dim=1)
    advantages_B = grpo(scores_B, inputs.batch.group_ids_B, norm_by_std=inputs.config.norm_adv_by_std)
    return spread_over_tokens(advantages_B, inputs.batch.mask_BT), None


_ESTIMATORS: dict[str, Callable[[EstimatorInputs], tuple[Tensor, Tensor | None]]] = {"gae": _gae, "grpo": _grpo}
