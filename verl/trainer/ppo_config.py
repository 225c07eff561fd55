"""`PPOConfig` under the name that training scripts import; it lives in `verl.config.schema`."""

from __future__ import annotations

from verl.config.schema import PPOConfig

__all__ = ["PPOConfig"]
