"""An opened tracker: each call with a deadline, and a record of what it was given."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl.journal import Kind, Record
from verl.tracking.logger import RunStatus, TrackedRun, TrainerLogger
from verl.tracking.relay.delivery import deliver, deliver_end, is_shown_at_a_step

log = logging.getLogger("verl.tracking")


class TrackerSession:
    """Calls a tracker. Use it from one thread; `overdue` may be asked from another.

    Args:
        name: Tracker's name.
        logger: The tracker, not yet open.
        directory: Run directory.
        last_step: Highest step that it was given before.

    Attributes:
        doing: The call that it is in, or was in last, in words.
        kind: Kind of the record delivered last.
        last_step: Highest step delivered that no rewind took back.
        is_open: Whether `open` succeeded.
    """

    def __init__(self, name: str, logger: TrainerLogger, directory: Path, last_step: int | None) -> None:
        self.logger = logger
        self.doing = "open"
        self.kind = ""
        self.last_step = last_step
        self.is_open = False
        self._name = name
        self._directory = directory
        self._since: float | None = None
        self._limit = 0.0

    @property
    def overdue(self) -> str | None:
        """What it has been doing for longer than it may, in words."""
        since, limit = self._since, self._limit
        if since is None or time.monotonic() - since < limit:
            return None
        return f"the tracker did not answer within {limit:.0f} s"

    def open(self, run: TrackedRun) -> None:
        """Open it for a run."""
        with self._call("open", self.logger.limits.open):
            self.logger.open(run)
        self.is_open = True

    def deliver(self, record: Record) -> None:
        """Show it a record; of rewinds only those that take back something that it was given."""
        self.kind = record.kind
        if record.kind == Kind.REWIND:
            to = record.fields.get("to")
            if not isinstance(to, int) or self.last_step is None or self.last_step <= to:
                return
            self.last_step = to
        elif is_shown_at_a_step(record):
            self.last_step = max(-1 if self.last_step is None else self.last_step, record.step or 0)
        with self._call(f"record {record.seq} ({record.kind}, step {record.step})", self.logger.limits.call):
            deliver(record, self.logger, self._directory)

    def flush(self, what: str = "flush") -> None:
        """Have it acknowledge what it was given."""
        with self._call(what, self.logger.limits.call):
            self.logger.flush()

    def finish(self, status: RunStatus, error: str | None) -> None:
        """Tell it how the run ended."""
        with self._call("finish", self.logger.limits.finish):
            deliver_end(status, error, self.logger)

    def close(self) -> None:
        """Let go of it; what it did not flush is delivered again, so an error here tells nothing new."""
        try:
            self.logger.close()
        except Exception as error:
            log.debug("%s: close: %s", self._name, error, exc_info=error)

    @contextmanager
    def _call(self, doing: str, limit: float) -> Iterator[None]:
        self.doing = doing
        self._limit = limit
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None
