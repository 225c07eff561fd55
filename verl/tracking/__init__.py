"""Tracking: what a run logs, kept in its journal and shown in every tracker.

    from verl.tracking import Tracking

    with Tracking("stocks", "first try", ["console", "tensorboard"]) as tracking:
        tracking.log_metrics({"loss": 0.3}, step=1)

Names load when first used: the relay process needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.config.schema import HealthConfig
    from verl.tracking.catalogue import CATALOGUE, lookup, sanitize_name
    from verl.tracking.health.monitor import HealthStopError
    from verl.tracking.logger import (
        Artifact,
        Embedding,
        Histogram,
        Moment,
        NewBranchError,
        StateLostError,
        TrackedRun,
        TrainerLogger,
    )
    from verl.tracking.metrics import MetricBuffer, merge
    from verl.tracking.relay.draining import drain
    from verl.tracking.spec import Direction, MetricSpec, Reduction
    from verl.tracking.table import check_tracker, load_tracker, tracker_locations
    from verl.tracking.tracking import Tracking
    from verl.tracking.writer import Writer

_LAZY = {
    "CATALOGUE": "verl.tracking.catalogue",
    "Artifact": "verl.tracking.logger",
    "Direction": "verl.tracking.spec",
    "Embedding": "verl.tracking.logger",
    "HealthConfig": "verl.config.schema",
    "HealthStopError": "verl.tracking.health.monitor",
    "Histogram": "verl.tracking.logger",
    "MetricBuffer": "verl.tracking.metrics",
    "MetricSpec": "verl.tracking.spec",
    "Moment": "verl.tracking.logger",
    "Reduction": "verl.tracking.spec",
    "NewBranchError": "verl.tracking.logger",
    "StateLostError": "verl.tracking.logger",
    "TrackedRun": "verl.tracking.logger",
    "Tracking": "verl.tracking.tracking",
    "TrainerLogger": "verl.tracking.logger",
    "Writer": "verl.tracking.writer",
    "check_tracker": "verl.tracking.table",
    "drain": "verl.tracking.relay.draining",
    "load_tracker": "verl.tracking.table",
    "lookup": "verl.tracking.catalogue",
    "merge": "verl.tracking.metrics",
    "sanitize_name": "verl.tracking.catalogue",
    "tracker_locations": "verl.tracking.table",
}

__all__ = [
    "CATALOGUE",
    "Artifact",
    "Direction",
    "Embedding",
    "HealthConfig",
    "HealthStopError",
    "Histogram",
    "MetricBuffer",
    "MetricSpec",
    "Moment",
    "NewBranchError",
    "Reduction",
    "StateLostError",
    "TrackedRun",
    "Tracking",
    "TrainerLogger",
    "Writer",
    "check_tracker",
    "drain",
    "load_tracker",
    "lookup",
    "merge",
    "sanitize_name",
    "tracker_locations",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'verl.tracking' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
