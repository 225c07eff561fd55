"""Turn records of the journal into calls of a tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from verl.journal.records import Kind, Record
from verl.tracking.logger import AlertLevel, Artifact, Embedding, Histogram, Moment, RunStatus, TrainerLogger

EMBEDDING_TYPE = "embedding"
_LEVELS: Mapping[str, AlertLevel] = {"info": "info", "notice": "info", "warning": "warning", "error": "error"}
_ENDINGS: Mapping[RunStatus, tuple[str, AlertLevel]] = {
    "finished": ("The run finished", "warning"),
    "failed": ("The run failed", "error"),
    "killed": ("The run was stopped", "warning"),
    "crashed": ("The run crashed", "error"),
}


def deliver(record: Record, logger: TrainerLogger, directory: Path) -> None:
    """Show one record in a tracker.

    Records that are not for trackers (`run`, `finish`, kinds of a newer version) do nothing: a tracker is opened
    and finished by who feeds it.

    Args:
        record: The record.
        logger: An opened tracker.
        directory: Run directory, for artifacts.

    Raises:
        Exception: Whatever the tracker raises.
    """
    handler = _HANDLERS.get(record.kind)
    if handler is None:
        return
    time = record.fields.get("walltime", record.t)
    logger.moment = Moment(time, record.attempt, record.seq)
    handler(record, logger, directory)


def is_for_trackers(record: Record) -> bool:
    """Whether `deliver` calls the tracker for this record."""
    return record.kind in _HANDLERS


def is_shown_at_a_step(record: Record) -> bool:
    """Whether trackers show it at a training step, so that a rewind can supersede what they show."""
    return record.kind in _AT_A_STEP and record.step is not None


def deliver_end(status: RunStatus, error: str | None, logger: TrainerLogger) -> None:
    """Tell a tracker how the run ended: what went wrong, if anything did, then the status."""
    if error:
        title, level = _ENDINGS[status]
        logger.alert(title, error.rstrip(": "), level)
    logger.finish(status)


def _step(record: Record) -> int:
    return 0 if record.step is None else record.step


def _config(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.log_config(record.fields["config"])


def _metrics(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.log_metrics(record.fields["metrics"], _step(record))


def _histogram(record: Record, logger: TrainerLogger, _: Path) -> None:
    counts = record.fields["histogram"]
    histogram = Histogram(
        minimum=counts["min"],
        maximum=counts["max"],
        count=counts["num"],
        sum=counts["sum"],
        sum_squares=counts["sum_squares"],
        bucket_limits=counts["bucket_limits"],
        bucket_counts=counts["bucket_counts"],
    )
    logger.log_histogram(record.fields["tag"], histogram, _step(record))


def _text(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.log_text(record.fields["tag"], record.fields["text"], _step(record))


def _table(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.log_table(record.fields["name"], record.fields["columns"], record.fields["rows"], _step(record))


def _artifact(record: Record, logger: TrainerLogger, directory: Path) -> None:
    fields = record.fields
    path, metadata = directory / fields["path"], fields["metadata"]
    if not path.resolve().is_relative_to(directory.resolve()):  # a journal from elsewhere must not send files of here
        logger.leave_out(fields["name"], record.step, "its path leads out of the run directory")
        return
    if fields["type"] == EMBEDDING_TYPE:
        logger.log_embedding(_read_embedding(fields["name"], path, metadata, directory), _step(record))
    else:
        logger.log_artifact(Artifact(fields["name"], path, fields["type"], metadata), _step(record))


def _read_embedding(tag: str, path: Path, metadata: Mapping[str, Any], directory: Path) -> Embedding:
    labels = metadata["labels"]
    sprite = metadata["sprite"]
    return Embedding(
        tag=tag,
        vectors=np.load(path, mmap_mode="r", allow_pickle=False),
        labels=orjson.loads((directory / labels).read_bytes()) if labels else None,
        header=metadata["header"],
        sprite=directory / sprite if sprite else None,
        sprite_size=tuple(metadata["sprite_size"]) if sprite else None,
    )


def _alert(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.alert(record.fields["title"], record.fields["text"], _LEVELS.get(record.fields["level"], "warning"))


def _note(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.alert("", record.fields["text"], _LEVELS.get(record.fields["level"], "warning"))


def _rewind(record: Record, logger: TrainerLogger, _: Path) -> None:
    logger.purge(record.fields["to"])


_AT_A_STEP = (Kind.METRICS, Kind.HISTOGRAM, Kind.TEXT, Kind.TABLE, Kind.ARTIFACT)

_HANDLERS: dict[str, Callable[[Record, TrainerLogger, Path], None]] = {
    Kind.CONFIG: _config,
    Kind.METRICS: _metrics,
    Kind.HISTOGRAM: _histogram,
    Kind.TEXT: _text,
    Kind.TABLE: _table,
    Kind.ARTIFACT: _artifact,
    Kind.ALERT: _alert,
    Kind.NOTE: _note,
    Kind.REWIND: _rewind,
}
