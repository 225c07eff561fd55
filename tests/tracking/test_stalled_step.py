"""A step that does not end: told once, and told when it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl.config.schema import HealthConfig, StalledStepConfig
from verl.errors import JournalError
from verl.journal import JournalReader
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking
from verl.tracking.health.monitor import HealthMonitor, HealthStopError
from verl.tracking.health.stall_watch import StallWatch

Told = list[tuple[str, str]]


class Clock:
    """A time that passes when a test says so; the thread of the watch has looked when `passes` returns."""

    def __init__(self) -> None:
        self.time = 0.0
        self._due: float | None = None
        self._changed = threading.Condition()

    def now(self) -> float:
        return self.time

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        with self._changed:
            self._due = self.time + seconds
            self._changed.notify_all()
            while self.time < self._due and not stop.is_set():
                self._changed.wait(0.05)  # nobody says that `stop` was set
            self._due = None
        return stop.is_set()

    def passes(self, seconds: float) -> None:
        """The watch looks at each moment at which it wants to."""
        end = self.time + seconds
        while self.time < end:
            self.jumps(min(self._waits_until(), end) - self.time)

    def jumps(self, seconds: float) -> None:
        """The watch sleeps all the time, as while the process is suspended."""
        self._waits_until()
        with self._changed:
            self.time += seconds
            self._changed.notify_all()
        self._waits_until()

    def _waits_until(self) -> float:
        with self._changed:
            is_waiting = self._changed.wait_for(lambda: self._due is not None and self._due > self.time, 20)
            assert is_waiting
            assert self._due is not None
            return self._due


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock, told: Told) -> Iterator[Callable[..., StallWatch]]:
    made: list[StallWatch] = []

    def make(
        total_steps: int | None = None, *, stalled: Callable[[str], None] | None = None, minimum: float = 60.0
    ) -> StallWatch:
        config = StalledStepConfig(factor=2, minimum_seconds=minimum)
        tell = stalled or (lambda text: told.append(("stalled", text)))
        resumed = lambda text: told.append(("resumed", text))  # noqa: E731
        made.append(StallWatch(config, tell, resumed, total_steps, now=clock.now, wait=clock.wait))
        return made[-1]

    yield make
    for watch in made:
        watch.stop()


def steps(watch: StallWatch, clock: Clock, count: int, seconds: float = 2.0) -> None:
    """Steps from 1; the last one has begun."""
    for step in range(1, count + 1):
        watch.beat(step)
        if step < count:
            clock.passes(seconds)


def test_a_stalled_step_is_told_once_and_so_is_its_end(
    make: Callable[..., StallWatch], clock: Clock, told: Told
) -> None:
    watch = make()
    steps(watch, clock, 7)
    clock.passes(59)
    assert told == []
    clock.passes(2)
    ((kind, text),) = told
    assert kind == "stalled"
    assert text == "Step 7: no step has ended for 60 s (limit 60 s; median of the last 5 steps: 2 s)"
    clock.passes(100)
    assert len(told) == 1
    watch.beat(8)
    assert told[1] == ("resumed", "Step 8: training goes on, after 161 s without a step that ended.")
    clock.passes(241)
    assert len(told) == 2
    clock.passes(1)  # longer than one and a half times the longest one
    assert "Step 8: no step has ended for 242 s (limit 242 s" in told[2][1]


def test_a_start_that_takes_long_is_no_stall(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make()
    watch.beat(0)
    clock.passes(500)
    for step in (1, 2, 3):
        watch.beat(step)
    clock.passes(500)
    assert told == []  # two steps are not enough to know what is usual


def test_the_same_step_again_is_no_end_of_a_step(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make()
    steps(watch, clock, 6)
    for _ in range(20):
        watch.beat(6)
        clock.passes(5)
    assert [kind for kind, _ in told] == ["stalled"]


def test_nothing_is_a_stall_after_the_last_step(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make(6)
    steps(watch, clock, 5)
    clock.passes(65)
    watch.beat(6)
    assert [kind for kind, _ in told] == ["stalled", "resumed"]  # before it, it is
    clock.passes(10_000)
    assert len(told) == 2


def test_what_is_no_part_of_a_step_may_take_any_time(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make()
    steps(watch, clock, 6)
    clock.passes(1)
    with watch.pause():
        clock.passes(500)
        with watch.pause():
            clock.passes(500)
        clock.passes(500)
    clock.passes(58)
    assert told == []
    clock.passes(2)
    ((_, text),) = told
    assert text.startswith("Step 6: no step has ended for 60")


def test_a_step_that_ends_within_a_pause_counts_without_it(
    make: Callable[..., StallWatch], clock: Clock, told: Told
) -> None:
    watch = make()
    steps(watch, clock, 6)
    clock.passes(2)
    with watch.pause():
        clock.passes(500)
        watch.beat(7)
        clock.passes(500)
    clock.passes(61)  # were the pause a step, this would have to be longer than one and a half of it
    assert [text.partition(":")[0] for _, text in told] == ["Step 7"]


def test_a_pause_ends_when_what_is_done_in_it_fails(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make()
    steps(watch, clock, 6)
    with pytest.raises(RuntimeError), watch.pause():
        raise RuntimeError
    clock.passes(61)
    assert [kind for kind, _ in told] == ["stalled"]


def test_a_process_that_sleeps_is_not_stalled(make: Callable[..., StallWatch], clock: Clock, told: Told) -> None:
    watch = make()
    steps(watch, clock, 6)
    clock.jumps(5000)
    clock.passes(50)
    assert told == []
    clock.passes(11)
    assert len(told) == 1


def test_a_journal_that_cannot_be_written_does_not_end_the_watch(
    make: Callable[..., StallWatch], clock: Clock, told: Told
) -> None:
    def stalled(text: str) -> None:
        told.append(("stalled", text))
        raise JournalError("no space left")

    watch = make(stalled=stalled)
    steps(watch, clock, 6)
    clock.passes(61)
    assert len(told) == 1
    watch.beat(7)
    clock.passes(200)
    assert [kind for kind, _ in told] == ["stalled", "resumed", "stalled"]


def test_the_watch_ends_when_it_is_told_to(told: Told) -> None:
    watch = StallWatch(StalledStepConfig(minimum_seconds=600), print, print)
    begun = time.monotonic()
    watch.stop()
    assert time.monotonic() - begun < 0.9
    assert not watch._thread.is_alive()


# In a loop.

QUICK = {"factor": 2, "minimum_seconds": 0.05}


def stalls_after(steps: int, monitor: HealthMonitor, told: list[str]) -> None:
    for step in range(1, steps + 1):
        monitor.begin_step(step)
    until(lambda: told)


def test_a_run_that_is_complete_does_not_fail_for_a_step_that_was_stalled() -> None:
    told: list[str] = []
    health = HealthConfig(stalled_step=QUICK, stop_on=["stalled_step", "not_finite"])
    monitor = HealthMonitor(health, lambda title, text, level: told.append(title), total_steps=7)
    stalls_after(6, monitor, told)
    with pytest.raises(HealthStopError, match="`stalled_step`"):
        monitor.check()
    monitor.begin_step(7)
    monitor.check()
    monitor.observe(7, {"loss": float("nan")})
    with pytest.raises(HealthStopError, match="`not_finite`"):
        monitor.check()
    monitor.stop()


def test_a_monitor_pauses_whether_it_watches_steps_or_not() -> None:
    told: list[str] = []
    for health in (HealthConfig(stalled_step=QUICK), HealthConfig(stalled_step={"enabled": False})):
        monitor = HealthMonitor(health, lambda title, text, level: told.append(title))
        with monitor.pause():
            for step in range(1, 7):
                monitor.begin_step(step)
            time.sleep(0.15)
        monitor.stop()
    assert told == []


def test_the_alert_is_in_the_journal_while_the_loop_stands_still(tmp_path: Path) -> None:
    health = HealthConfig(stalled_step={"factor": 2, "minimum_seconds": 0.2})
    logger = RecordingLogger()
    with Tracking("p", "e", [logger], log_dir=str(tmp_path), health=health, async_log=False) as tracking:
        for step in range(1, 7):
            tracking.progress(step)
            tracking.log_metrics({"loss": 1.0}, step)
        until(lambda: list(JournalReader(tmp_path).records({"alert"})))
        tracking.progress(7)
    first, second = JournalReader(tmp_path).records({"alert"})
    assert (first.step, first.fields["level"], first.fields["title"]) == (6, "error", "step is stalled")
    assert "py-spy" in first.fields["text"]
    assert (second.fields["level"], second.fields["title"]) == ("info", "training goes on")
    assert [title for title, _, _ in logger.of("alert")] == ["step is stalled", "training goes on"]
    assert logger.points("loss") == [(step, 1.0) for step in range(1, 7)]


def test_what_follows_the_last_step_does_not_fail_the_run(tmp_path: Path) -> None:
    health = HealthConfig(stalled_step=QUICK, stop_on=["stalled_step"])
    with Tracking("p", "e", [], log_dir=str(tmp_path), health=health, total_steps=6, async_log=False) as tracking:
        for step in range(1, 7):
            tracking.progress(step)
            tracking.log_metrics({"loss": 1.0}, step)
        time.sleep(0.3)
        tracking.check_health()
    assert list(JournalReader(tmp_path).records({"alert"})) == []


def test_a_loop_may_validate_as_long_as_it_likes(tmp_path: Path) -> None:
    health = HealthConfig(stalled_step=QUICK, stop_on=["stalled_step"])
    with Tracking("p", "e", [], log_dir=str(tmp_path), health=health, total_steps=9, async_log=False) as tracking:
        for step in range(1, 7):
            tracking.log_metrics({"loss": 1.0}, step)
        with tracking.unwatched():
            time.sleep(0.3)
        tracking.check_health()
    assert list(JournalReader(tmp_path).records({"alert"})) == []


def test_without_health_and_on_other_ranks_a_block_is_just_done(tmp_path: Path) -> None:
    for rank in (0, 1):
        with Tracking("p", "e", [], log_dir=str(tmp_path), rank=rank) as tracking, tracking.unwatched():
            tracking.log_metrics({"loss": 1.0}, 1)


PROGRAM = """
import time
from verl.config.schema import StalledStepConfig
from verl.tracking.health.stall_watch import StallWatch

config = StalledStepConfig(factor=2, minimum_seconds=4.0)
watch = StallWatch(config, lambda text: print("stalled", flush=True), print)
for step in range(6):
    watch.beat(step)
print("ready", flush=True)
for _ in range(40):
    time.sleep(0.05)
watch.beat(6)
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_was_suspended_is_not_stalled() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(9.0)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0
