"""Optimizer, learning-rate schedule and gradient clipping of one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from verl.config.schema import OptimConfig
from verl.errors import ConfigError

_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate_factor(config: OptimConfig, total_steps: int, step: int) -> float:
    """Share of the peak learning rate in step `step` (counted from 0).

    Linear warm-up to 1 over `lr_warmup_steps`, then the schedule from 1 down to `min_lr_ratio` at `total_steps`.
    """
    if step < config.lr_warmup_steps:
        return (step + 1) / config.lr_warmup_steps
    span = max(total_steps - config.lr_warmup_steps, 1)
    progress = min((step - config.lr_warmup_steps) / span, 1.0)
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * _SCHEDULES[config.lr_scheduler](progress)


class Optimization:
    """AdamW over the trainable parameters of a model; the schedule counts trainer steps, not optimizer steps.

    Args:
        model: Its parameters with `requires_grad` are trained.
        config: Optimizer settings.
        total_steps: Trainer steps of the whole run.
        grad_clip: Largest gradient norm.

    Attributes:
        learning_rate: Learning rate of this trainer step.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, total_steps: int, grad_clip: float) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._config = config
        self._total_steps = total_steps
        self._grad_clip = grad_clip
        self._optimizer = AdamW(
            self._parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
        self._set_step(0)

    def apply(self) -> float:
        """Clips the accumulated gradients, takes one optimizer step and clears them.

        Returns:
            The gradient norm before clipping. If it is not finite, nothing is updated: one bad batch must
            not destroy the weights, and the norm in the metrics tells of it.
        """
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._grad_clip))
        if math.isfinite(norm):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def end_step(self) -> None:
        """Moves the learning rate on to the next trainer step."""
        self._set_step(self._step + 1)

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer, and the trainer step that is next."""
        return {"optimizer": self._optimizer.state_dict(), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`; learning rate, betas and decay follow the present configuration."""
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group.update(betas=self._config.betas, weight_decay=self._config.weight_decay)
        self._set_step(state["step"])

    def _set_step(self, step: int) -> None:
        self._step = step
        self.learning_rate = self._config.lr * learning_rate_factor(self._config, self._total_steps, step)
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate


def torch_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: CUDA is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device is cuda, but torch finds no CUDA device here: use auto or cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
