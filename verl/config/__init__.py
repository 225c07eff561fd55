"""Configuration: the schema, its layers, and how a command line is read.

Names load when first used, so that `verl --help` and `import verl.config.environment` stay light:

    from verl.config import load_config

    config = load_config("config/experiment.yaml", ["trainer.total_steps=10"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.config.command_line import parse_arguments, run_command
    from verl.config.environment import process_rank, resolve_log_dir
    from verl.config.load import load_config
    from verl.config.schema import PPOConfig
    from verl.config.show import changed_keys, render

_LAZY = {
    "PPOConfig": "verl.config.schema",
    "changed_keys": "verl.config.show",
    "load_config": "verl.config.load",
    "parse_arguments": "verl.config.command_line",
    "process_rank": "verl.config.environment",
    "render": "verl.config.show",
    "resolve_log_dir": "verl.config.environment",
    "run_command": "verl.config.command_line",
}

__all__ = [
    "PPOConfig",
    "changed_keys",
    "load_config",
    "parse_arguments",
    "process_rank",
    "render",
    "resolve_log_dir",
    "run_command",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'verl.config' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
