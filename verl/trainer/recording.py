"""What a run records beside its metrics: histograms, samples, embeddings, the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from verl.config import PPOConfig
from verl.rewards import MODEL_PART
from verl.tracing.trajectory import Trajectory
from verl.tracking import Tracking
from verl.trainer.batch import RolloutBatch
from verl.trainer.ppo_parts import PPOParts

MAX_EMBEDDING_ROWS = 5000
"""Points that the projector still shows smoothly; a larger vocabulary is cut to its first tokens."""


def record_environment(tracking: Tracking, config: PPOConfig) -> None:
    """Writes `environment.json` in the background, with the fingerprints of data and models."""
    models = {
        "actor": config.actor_rollout_ref.model.path,
        "reference": config.actor_rollout_ref.ref.path,
        "critic": config.critic.path,
        "reward": config.reward.model.path,
    }
    tracking.record_environment(
        seeds={"trainer": config.trainer.seed, "data": config.data.seed},
        data_files=[*config.data.train_files, *config.data.val_files],
        models={role: path for role, path in models.items() if path is not None},
    )


def log_rollouts(tracking: Tracking, batch: RolloutBatch, num_samples: int, step: int) -> None:
    """Histograms of rewards, lengths, advantages and reward-model scores, and the first samples as text."""
    trajectories = batch.trajectories
    tracking.log_histogram("reward/dist", batch.rewards_B.cpu().numpy(), step)
    tracking.log_histogram("length/response", np.array([len(t.response_ids) for t in trajectories]), step)
    if batch.advantages_BT is not None:
        tracking.log_histogram("advantage/dist", _selected(batch.advantages_BT, batch.mask_BT), step)
    scores = [t.reward_parts[MODEL_PART] for t in trajectories if MODEL_PART in t.reward_parts]
    if scores:
        tracking.log_histogram("reward/model_score", np.array(scores), step)
    if num_samples:
        text = "\n\n---\n\n".join(sample_text(trajectory) for trajectory in trajectories[:num_samples])
        tracking.log_text("samples/prompt_response", text, step)


def sample_text(trajectory: Trajectory) -> str:
    """One trajectory as Markdown."""
    parts = "".join(f", {name} {value:.3g}" for name, value in trajectory.reward_parts.items())
    return (
        f"**Prompt:** {trajectory.prompt_text}\n\n**Response:** {trajectory.response_text}\n\n"
        f"**Reward:** {trajectory.reward:.4g}{parts} ({trajectory.finish_reason})"
    )


def log_embeddings(tracking: Tracking, parts: PPOParts, step: int) -> None:
    """The policy's input embeddings with their tokens, for the projector."""
    embedding: Any = parts.policy.transformer.get_input_embeddings()
    weight_VH = embedding.weight[:MAX_EMBEDDING_ROWS].detach()
    tokens = parts.tokenizer.convert_ids_to_tokens(list(range(min(len(weight_VH), len(parts.tokenizer)))))
    labels = [repr(token)[1:-1] for token in tokens]
    tracking.log_embedding("model/embeddings", weight_VH[: len(labels)].float().cpu().numpy(), labels, step)


def _selected(values_BT: Tensor, mask_BT: Tensor) -> np.ndarray:
    return values_BT[mask_BT].detach().float().cpu().numpy()
