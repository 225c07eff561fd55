"""Forward passes over a whole batch in micro-batches, without gradients.

Shapes: B trajectories, T response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verl.models.logprobs import TokenLogprobs, token_logprobs
from verl.models.policy import PolicyModel
from verl.models.value_model import ValueModel, token_values
from verl.trainer.batch import RolloutBatch


@torch.no_grad()
def score_logprobs(policy: PolicyModel, batch: RolloutBatch, temperature: float, size: int | None) -> TokenLogprobs:
    """Log-probs and entropies BT of all trajectories, at most `size` of them per forward pass."""
    logprobs_BT, entropy_BT = torch.zeros_like(batch.rollout_logprobs_BT), torch.zeros_like(batch.rollout_logprobs_BT)
    for rows in batch.micro_batches(range(len(batch)), size):
        scored = token_logprobs(policy, batch.rows(rows).model_batch(), temperature)
        width = scored.logprobs_BT.shape[1]
        logprobs_BT[rows, :width], entropy_BT[rows, :width] = scored.logprobs_BT, scored.entropy_BT
    return TokenLogprobs(logprobs_BT=logprobs_BT, entropy_BT=entropy_BT)


@torch.no_grad()
def score_values(critic: ValueModel, batch: RolloutBatch, size: int | None) -> Tensor:
    """Values BT of all trajectories, at most `size` of them per forward pass."""
    values_BT = torch.zeros_like(batch.rollout_logprobs_BT)
    for rows in batch.micro_batches(range(len(batch)), size):
        values = token_values(critic, batch.rows(rows).model_batch())
        values_BT[rows, : values.shape[1]] = values
    return values_BT
