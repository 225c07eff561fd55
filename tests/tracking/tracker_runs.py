"""A run that a test logs to a real tracker, and what it looks for in the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from verl.journal import RunDirectory
from verl.testing.expectation import differences, expected
from verl.testing.services import TrackerService
from verl.tracking import Tracking, drain
from verl.tracking.relay.feed_state import FeedState, read_states

SECONDS = 180.0


def start(service: TrackerService, path: Path) -> Tracking:
    return Tracking("verl tests", "faults", [service.tracker], {"a": 1}, log_dir=str(path))


def log(tracking: Tracking, first: int, last: int) -> None:
    for step in range(first, last + 1):
        tracking.progress(step)
        tracking.log_text("sample", f"text {step}", step)
        tracking.log_metrics({"loss": step / 64, "length": float(step)}, step)


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def relays(path: Path) -> list[psutil.Process]:
    """The relay of a run and its feeders, which are forks of it."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "verl.tracking.relay" in (command := process.info["cmdline"] or []) and str(path) in command
    ]


def relay_and_feeder(path: Path) -> tuple[psutil.Process, psutil.Process]:
    """Those of a run with one tracker, once both are there."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = relays(path)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = next((other for other in found if other.pid == process.ppid()), None)
                if parent is not None:
                    return parent, process
        assert time.monotonic() < deadline, "there is no feeder"
        time.sleep(0.05)


def kill_all(path: Path) -> None:
    """End the relay and everything that it started, now."""
    for process in relays(path):
        process.kill()
    until(lambda: not relays(path))


def state_of(path: Path, tracker: str) -> FeedState:
    return next((state for state in read_states(path) if state.tracker == tracker), FeedState(tracker))


def is_fed(path: Path) -> bool:
    return any(state.delivered for state in read_states(path))


def is_failing(path: Path) -> bool:
    return any(state.failures for state in read_states(path))


def assert_complete(service: TrackerService, path: Path) -> None:
    """By the relay, which is still at it, or by hand."""
    until(lambda: not relays(path))
    directory = RunDirectory.open(path)
    (state,) = drain(directory, [service.tracker], SECONDS)
    assert state.status == directory.status, state
    assert state.num_skipped == 0, state.skipped
    assert_shows_the_journal(service, path)


def assert_shows_the_journal(service: TrackerService, path: Path) -> None:
    """Value for value, each once, with the true status."""
    wanted, found = expected(path, service.as_shown), service.read(path)
    assert wanted.points, "there was something to be shown"
    assert not differences(wanted.points, found.points)
    assert found.texts == wanted.texts
    if found.status is not None:
        assert found.status == wanted.status
