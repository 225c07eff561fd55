"""Feed the console from memory, on a thread of its own: a blocked terminal stops nothing but itself."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable

from verl.journal import Record
from verl.tracking.logger import RunStatus, TrackedRun, TrainerLogger
from verl.tracking.relay.delivery import deliver, deliver_end

log = logging.getLogger("verl.tracking")

POLL_SECONDS = 0.1
MOST_WAITING = 10_000
"""Records kept for a terminal that does not take them; then the oldest are not shown (they are in the journal)."""


class ScreenFeed:
    """Hands records to the console.

    Args:
        logger: The console, not yet open.
        run: The run to open it for.

    Attributes:
        failures: Records it could not show. last_error: Why.
    """

    def __init__(self, logger: TrainerLogger, run: TrackedRun) -> None:
        self.failures = 0
        self.last_error = ""
        self._logger = logger
        self._run = run
        self._waiting: deque[Record] = deque(maxlen=MOST_WAITING)
        self._step: int | None = None
        self._ending: tuple[RunStatus, str | None] | None = None
        self._wake = threading.Event()
        self._streams = (sys.stdout, sys.stderr)
        self._thread = threading.Thread(target=self._work, name="verl-console", daemon=True)
        self._thread.start()

    def push(self, record: Record) -> None:
        """Show a record, which must be in the journal already. Never waits."""
        self._waiting.append(record)

    def progress(self, step: int) -> None:
        """Training begins this step."""
        self._step = step

    def finish(self, status: RunStatus, error: str | None, seconds: float) -> bool:
        """Show what is left and the closing summary; False if the terminal does not take it in time."""
        self._ending = (status, error)
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            # A live display that is stuck still stands in for them.
            sys.stdout, sys.stderr = self._streams
            return False
        return True

    def _work(self) -> None:
        self._attempt("open", lambda: self._logger.open(self._run))
        while True:
            ending = self._ending
            self._show_waiting()
            if ending:
                self._attempt("finish", lambda end=ending: deliver_end(*end, self._logger))
                return
            self._attempt("draw", self._logger.flush)
            self._wake.wait(POLL_SECONDS)

    def _show_waiting(self) -> None:
        while self._waiting:
            record = self._waiting.popleft()
            self._attempt(f"show record {record.seq}", lambda record=record: self._deliver(record))
        step, self._step = self._step, None
        if step is not None:
            self._attempt("show progress", lambda: self._logger.progress(step))

    def _deliver(self, record: Record) -> None:
        deliver(record, self._logger, self._run.directory)

    def _attempt(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self.failures += 1
            self.last_error = f"{what}: {type(error).__name__}: {error}"
            log.debug("console: %s", self.last_error, exc_info=error)
