"""The tensors of one step, built from its trajectories.

Shapes: B trajectories, T response tokens (right-padded to the longest).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from verl.models.batching import ModelBatch, pad_batch
from verl.tracing.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Trajectories as tensors; what a later phase computes is added by `replace`.

    Attributes:
        trajectories: Where the token ids are.
        mask_BT: 1 where the policy sampled the token (trainable).
        group_ids_B: Number of the group (the samples of one prompt) in this batch.
        rewards_B: Terminal reward.
        rollout_logprobs_BT: Log-prob at sampling. old_logprobs_BT: Recomputed by the trainer.
        ref_logprobs_BT: Under the reference. values_BT: Of the critic, before the update.
        advantages_BT, returns_BT: Of the estimator.
    """

    trajectories: Sequence[Trajectory]
    mask_BT: Tensor
    group_ids_B: Tensor
    rewards_B: Tensor
    rollout_logprobs_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    advantages_BT: Tensor | None = None
    returns_BT: Tensor | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], group_ids: Sequence[int], device: torch.device) -> RolloutBatch:
        """Pads the trajectories of a step; their rewards must be known."""
        rewards = [_reward(trajectory) for trajectory in trajectories]
        return cls(
            trajectories=trajectories,
            mask_BT=pad_right([trajectory.response_mask for trajectory in trajectories], torch.bool, device),
            group_ids_B=torch.tensor(group_ids, device=device),
            rewards_B=torch.tensor(rewards, dtype=torch.float32, device=device),
            rollout_logprobs_BT=pad_right([t.rollout_logprobs for t in trajectories], torch.float32, device),
        )

    def __len__(self) -> int:
        return len(self.trajectories)

    def rows(self, indices: Sequence[int]) -> RolloutBatch:
        """The rows of `indices`, with T cut to their longest response."""
        trajectories = [self.trajectories[index] for index in indices]
        width = max((len(trajectory.response_ids) for trajectory in trajectories), default=0)
        rows = torch.as_tensor(indices, device=self.mask_BT.device)
        changes: dict[str, object] = {"trajectories": trajectories}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = value[rows, :width] if field.name.endswith("_BT") else value[rows]
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def model_batch(self) -> ModelBatch:
        """The padded model input of these rows."""
        return pad_batch(self.trajectories, device=self.mask_BT.device)

    def micro_batches(self, indices: Sequence[int], size: int | None) -> Iterator[list[int]]:
        """Splits `indices` into parts of at most `size`, rows of like length together (less padding).

        How it is split changes memory and speed, never a result: all sums are taken over the whole.
        """
        by_length = sorted(indices, key=self._length)
        size = size or max(len(by_length), 1)
        for start in range(0, len(by_length), size):
            yield by_length[start : start + size]

    def _length(self, index: int) -> int:
        return len(self.trajectories[index].prompt_ids) + len(self.trajectories[index].response_ids)


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None, "rewards are computed before the batch is built"
    return trajectory.reward


def pad_right(rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows of unequal length as one tensor B x T, padded with zeros on the right."""
    lengths_B = np.array([len(row) for row in rows], dtype=np.int64)
    is_real_BT = np.arange(lengths_B.max(initial=0)) < lengths_B[:, None]
    padded_BT = np.zeros(is_real_BT.shape, dtype=np.float64)
    padded_BT[is_real_BT] = np.fromiter((value for row in rows for value in row), np.float64, lengths_B.sum())
    return torch.from_numpy(padded_BT).to(device, dtype)


def store_token_facts(trajectories: Sequence[Trajectory], batch: RolloutBatch, entropy_BT: Tensor) -> None:
    """Joins what became known after the rollout to the trajectories, one array over their response tokens each."""
    facts = {
        "old_logprob": batch.old_logprobs_BT,
        "ref_logprob": batch.ref_logprobs_BT,
        "value": batch.values_BT,
        "advantage": batch.advantages_BT,
        "return": batch.returns_BT,
        "entropy": entropy_BT,
    }
    for name, values_BT in facts.items():
        if values_BT is None:
            continue
        array = values_BT.detach().float().cpu().numpy()
        for row, trajectory in enumerate(trajectories):
            trajectory.token_facts[name] = np.ascontiguousarray(array[row, : len(trajectory.response_ids)])
