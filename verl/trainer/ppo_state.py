"""What a PPO checkpoint holds beyond the model folders, and how a run continues from it bit for bit.

Sampling, data order and mini-batches are pure functions of seed and step, so the step alone restores them; the
generators' states are kept for what else draws random numbers (rewards, hooks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from verl.algorithms.kl import KlController
from verl.errors import CheckpointError
from verl.models.export import save_adapter_folder, save_model_folder
from verl.models.lora import has_lora
from verl.models.policy import PolicyModel
from verl.models.value_model import ValueModel
from verl.tracking.metrics import MetricBuffer, MetricState
from verl.trainer.checkpoint import random_states, restore_random_states
from verl.trainer.optimization import Optimization

STATE_FILE = "trainer_state.pt"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """State of the random generators and of the metrics not logged yet, after a whole step."""

    random: dict[str, Any]
    metrics: MetricState


@dataclass(frozen=True, slots=True)
class PPOState:
    """The live objects whose state a checkpoint keeps.

    Attributes:
        settings: What a continued run should share with this one, by key; a difference is a warning.
    """

    actor_optimization: Optimization
    critic_optimization: Optimization | None
    kl_controller: KlController
    metrics: MetricBuffer
    settings: Mapping[str, str | int]

    def step_end(self) -> StepEnd:
        """What changes during a step before its weights do; taken after each whole step, so that a step which a
        signal cuts short leaves no trace in the checkpoint."""
        return StepEnd(random_states(), self.metrics.state_dict())

    def save(self, folder: Path, step_end: StepEnd) -> None:
        """Writes `trainer_state.pt`."""
        critic = self.critic_optimization
        state = {
            "actor_optimization": self.actor_optimization.state_dict(),
            "critic_optimization": None if critic is None else critic.state_dict(),
            "kl_controller": self.kl_controller.state_dict(),
            "metrics": step_end.metrics,
            "random": step_end.random,
            "settings": dict(self.settings),
        }
        torch.save(state, folder / STATE_FILE)

    def load(self, checkpoint: Path) -> list[str]:
        """Takes over the state of a checkpoint.

        Returns:
            Warnings about what differs from the run that saved it.

        Raises:
            CheckpointError: The file is missing, damaged, or of another kind of run.
        """
        path = checkpoint / STATE_FILE
        try:
            # weights_only: a checkpoint holds plain values, and must not be able to run code.
            state: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            self.actor_optimization.load_state_dict(state["actor_optimization"])
            self.kl_controller.load_state_dict(state["kl_controller"])
            self.metrics.load_state_dict(state["metrics"])
            if self.critic_optimization is not None and state["critic_optimization"] is not None:
                self.critic_optimization.load_state_dict(state["critic_optimization"])
            restore_random_states(state["random"])
            saved: Mapping[str, str | int] = state["settings"]
        except (
            OSError,
            RuntimeError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            EOFError,
            UnpicklingError,
        ) as error:
            raise CheckpointError(
                f"{path} cannot be continued from: {type(error).__name__}: {error}. It is damaged, or was saved by a "
                "run with another model or optimizer; use an older checkpoint, or start anew from its actor/ folder "
                f"with actor_rollout_ref.model.path={checkpoint / 'actor'}"
            ) from error
        warnings = [
            f"{key} was {saved[key]!r} in the run that saved the checkpoint and is {value!r} now: "
            "the run goes on, but not as it would have."
            for key, value in self.settings.items()
            if key in saved and saved[key] != value
        ]
        if self.critic_optimization is not None and state["critic_optimization"] is None:
            warnings.append("The checkpoint has no critic: it starts from the policy model.")
        return warnings


def save_models(
    folder: Path, policy: PolicyModel, critic: ValueModel | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Writes `actor/` (a plain transformers folder, or the adapter alone with LoRA) and `critic/`."""
    if has_lora(policy):
        save_adapter_folder(policy, folder / "actor")
    else:
        save_model_folder(policy, tokenizer, folder / "actor")
    if critic is not None:
        critic.save_pretrained(folder / "critic")
