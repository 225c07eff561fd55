"""How far `verl sync` is: bars in a terminal, a line now and then elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from verl.config.environment import wants_color
from verl.tracking.console.terminal_text import one_line
from verl.tracking.diagnosis import completion

_SECONDS_BETWEEN_LINES = 5.0
_LONGEST_NAME = 20

Watch = Callable[[Sequence[completion.Progress]], None]


@contextmanager
def shown_progress() -> Iterator[Watch]:
    """Gives a function that shows how far the trackers are whenever it is called."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    console = Console(stderr=True, no_color=not wants_color(), markup=False, highlight=False, emoji=False)
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("records", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[trouble]}", markup=False),
    ]
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield _Bars(progress)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, found: Sequence[completion.Progress]) -> None:
        for item in found:
            if item.tracker not in self._tasks:
                name = one_line(item.tracker, _LONGEST_NAME)
                # What was there before is no sign of how fast it goes.
                task = self._progress.add_task(name, total=item.total, completed=item.delivered, trouble="")
                self._tasks[item.tracker] = task
            trouble = "failing, tried again" if item.trouble else ""
            self._progress.update(
                self._tasks[item.tracker], completed=item.delivered, total=item.total, trouble=trouble
            )


class _Lines:
    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str]] = {}
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(self, found: Sequence[completion.Progress]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
        for item in found:
            if self._shown.get(item.tracker) == (item.delivered, item.trouble):
                continue
            self._shown[item.tracker] = (item.delivered, item.trouble)
            trouble = f" ({one_line(item.trouble, 200)})" if item.trouble else ""
            sys.stderr.write(f"{one_line(item.tracker)}: {item.delivered:,} of {item.total:,} records{trouble}\n")
        sys.stderr.flush()
