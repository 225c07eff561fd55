"""The name of a run that was given none."""

from __future__ import annotations

import re
from datetime import datetime

from verl.config.schema import PPOConfig


def experiment_name(config: PPOConfig, now: datetime) -> str:
    """`trainer.experiment_name`, else `<algorithm>_<model>_<YYYYmmdd>`, such as `grpo_opt-125m_20250405`.

    Args:
        config: The configuration.
        now: Local time of the start of the run.
    """
    if config.trainer.experiment_name is not None:
        return config.trainer.experiment_name
    path = config.actor_rollout_ref.model.path
    model = "builtin" if path is None else path.rstrip("/").rpartition("/")[2]
    readable = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return f"{config.algorithm.type}_{readable}_{now:%Y%m%d}"
