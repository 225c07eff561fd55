"""A step that does not end: told once, and told when it goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl.config.schema import HealthConfig, StalledStepConfig
from verl.errors import JournalError
from verl.journal import JournalReader
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking
from verl.tracking.stall_watch import StallWatch

Told = list[tuple[str, str]]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def watch(told: Told) -> Iterator[StallWatch]:
    watch = StallWatch(
        StalledStepConfig(factor=2, minimum_seconds=0.4),
        lambda text: told.append(("stalled", text)),
        lambda text: told.append(("resumed", text)),
    )
    yield watch
    watch.stop()


def test_a_stalled_step_is_told_once_and_so_is_its_end(watch: StallWatch, told: Told) -> None:
    for step in range(6):
        watch.beat(step)
        time.sleep(0.02)
    watch.beat(6)
    until(lambda: told)
    kind, text = told[0]
    assert kind == "stalled"
    assert re.fullmatch(
        r"Step 6: no step has ended for 0\.\d+ s \(limit 0\.4 s; median of the last 5 steps: 0\.0\d+ s\)", text
    )
    time.sleep(1.0)
    assert len(told) == 1
    watch.beat(7)
    assert [kind for kind, _ in told] == ["stalled", "resumed"]
    assert told[1][1].startswith("Step 7: training goes on, after 1.")
    until(lambda: len(told) > 2)  # the next one takes longer than one and a half times this one
    assert "Step 7: no step has ended for " in told[2][1]


def test_a_start_that_takes_long_is_no_stall(watch: StallWatch, told: Told) -> None:
    watch.beat(0)
    time.sleep(0.7)
    for step in (1, 2, 3):
        watch.beat(step)
    time.sleep(0.7)
    assert told == []  # two steps are not enough to know what is usual


def test_the_same_step_again_is_no_end_of_a_step(watch: StallWatch, told: Told) -> None:
    for step in range(6):
        watch.beat(step)
        time.sleep(0.01)
    deadline = time.monotonic() + 20
    while not told and time.monotonic() < deadline:
        watch.beat(5)
        time.sleep(0.05)
    assert [kind for kind, _ in told] == ["stalled"]


def test_a_journal_that_cannot_be_written_does_not_end_the_watch(told: Told) -> None:
    def stalled(text: str) -> None:
        told.append(("stalled", text))
        raise JournalError("no space left")

    watch = StallWatch(StalledStepConfig(factor=2, minimum_seconds=0.1), stalled, lambda text: None)
    for step in range(6):
        watch.beat(step)
    until(lambda: told)
    watch.beat(6)
    until(lambda: len(told) > 1)
    watch.stop()


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


PROGRAM = """
import time
from verl.config.schema import StalledStepConfig
from verl.tracking.stall_watch import StallWatch

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
