"""verl: post-train language models with reinforcement learning, and see everything that happened.

`import verl` is light (no torch); trainers load when first used:

    from verl import PPOTrainer
    from verl.trainer.ppo_config import PPOConfig

    PPOTrainer(config=PPOConfig(total_steps=10)).train()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from verl.version import __version__

if TYPE_CHECKING:
    from verl.trainer.ppo_config import PPOConfig
    from verl.trainer.ppo_trainer import PPOTrainer

_LAZY = {
    "PPOConfig": "verl.trainer.ppo_config",
    "PPOTrainer": "verl.trainer.ppo_trainer",
}

__all__ = ["PPOConfig", "PPOTrainer", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'verl' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
