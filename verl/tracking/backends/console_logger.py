"""The console: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from verl.config.environment import wants_color
from verl.tracking.console.console_view import closing_lines, live_view, opening_line, step_line, validation_line
from verl.tracking.console.run_view import RunView, TrackerReport
from verl.tracking.console.terminal_stream import terminal_stream
from verl.tracking.console.terminal_text import one_line
from verl.tracking.logger import AlertLevel, RunStatus, TrackedRun, TrainerLogger
from verl.tracking.relay.feed_state import BROKEN, FEEDING, RETRYING, read_states

_SECONDS_BETWEEN_DRAWINGS = 0.25
_SECONDS_BETWEEN_CLOCKS = 1.0  # when only the time has moved on
_LONGEST_MESSAGE = 300
_LEVEL_STYLE = {"info": "dim", "warning": "yellow", "error": "bold red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the program here.
        raise BrokenPipeError("nobody reads the output any more")


class ConsoleLogger(TrainerLogger):
    """Draws the run on the user's terminal, at most four times a second.

    Args:
        stream: Where to write; nothing = standard output.
        is_live: Draw a live table; nothing = if `stream` is a terminal that can, and colours are wanted.
    """

    shows: ClassVar[frozenset[str]] = frozenset({"metrics", "alert", "rewind", "status"})

    def __init__(self, stream: TextIO | None = None, is_live: bool | None = None) -> None:
        self.stream = stream
        self._is_live = is_live
        self._live: Live | None = None
        self._last_drawing = -math.inf
        self._has_news = True

    def open(self, run: TrackedRun) -> None:
        stream = self.stream or terminal_stream()
        is_live = stream.isatty() and wants_color() if self._is_live is None else self._is_live
        self._console = _Console(
            file=stream,
            force_terminal=is_live,
            force_jupyter=False,
            no_color=not is_live,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._view = RunView(run, started=time.time())
        self._say(opening_line(run))
        if is_live and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
            self._live.start()

    def progress(self, step: int) -> None:
        self._view.reach(step - 1, time.time())

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._has_news = True
        self._view.take(metrics, step, self.moment.time)
        if not self._live and (line := step_line(self._view, metrics, step)):
            self._say(line)
        if line := validation_line(metrics, step):
            self._say(line)

    def log_config(self, config: dict[str, Any]) -> None:
        """The console says where the configuration is (`config.yaml`), not all of it."""

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        message = one_line(f"{title}: {text}" if title else text, _LONGEST_MESSAGE)
        if level != "info":
            self._view.warn(message)
        self._say(Text.assemble((f"{level}  " if level != "info" else "", _LEVEL_STYLE[level]), message))

    def purge(self, to_step: int) -> None:
        self._view.go_back(to_step)
        self._say(Text(f"goes on from step {to_step}" if to_step >= 0 else "begins anew"))

    def flush(self) -> None:
        now = time.monotonic()
        pause = _SECONDS_BETWEEN_DRAWINGS if self._has_news else _SECONDS_BETWEEN_CLOCKS
        if self._live and now - self._last_drawing >= pause:
            self._draw(self._live)
            self._last_drawing = time.monotonic()
            self._has_news = False

    def finish(self, status: RunStatus) -> None:
        if self._live:
            self._draw(self._live)
            self._live.stop()
            self._live = None
        for line in closing_lines(self._view, status, _reports(self._view.run), time.time()):
            self._say(line)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self, live: Live) -> None:
        width, height = self._console.size
        live.update(live_view(self._view, width, height, time.time()), refresh=True)

    def _say(self, line: Text) -> None:
        # A terminal gets wrapped lines; a file or pipe one line each, however long.
        self._console.print(line, soft_wrap=self._live is None)


def _reports(run: TrackedRun) -> list[TrackerReport]:
    return [
        TrackerReport(
            name=state.tracker,
            where=state.where,
            failures=state.failures,
            last_error=state.last_error,
            is_complete=state.attempt == run.attempt
            and state.status not in (FEEDING, RETRYING, BROKEN)
            and not state.num_skipped,
        )
        for state in read_states(run.directory)
    ]
