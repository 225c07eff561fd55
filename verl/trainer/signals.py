"""SIGTERM and Ctrl-C as a request to save and close, not as a crash."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class StopRequested(Exception):
    """Raised at a safe point of the loop after a signal asked the run to stop."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name}")
        self.signal_name = signal_name


class StopSignals:
    """Context manager that turns the first SIGTERM or SIGINT into a request, and the second into an interrupt.

    The loop calls `check()` where nothing is half done: the weights there are those of the last whole step.
    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._requested: str | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested is not None:
            raise KeyboardInterrupt
        self._requested = signal.Signals(number).name

    def check(self) -> None:
        """Raises `StopRequested` if a signal came in."""
        if self._requested is not None:
            self._announce(f"{self._requested} received: saving a checkpoint and closing (again to stop at once)")
            raise StopRequested(self._requested)
