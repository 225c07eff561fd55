"""Whatever a server, a package or a process does: in the end each tracker has the canonical journal, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import SERVICES, WITH_FAULTS

from verl.journal import JournalReader, RunDirectory
from verl.testing.expectation import differences, expected
from verl.testing.services import Fault, TrackerService
from verl.tracking import Tracking, drain
from verl.tracking.feed_state import read_states

PROGRAM = Path(__file__).with_name("training_program.py")
SECONDS = 180.0
STEPS = 30

FAULTS: list[Fault] = ["down", "hang", 503, 429, 401]

with_faults = pytest.mark.parametrize("running_service", WITH_FAULTS, indirect=True)
with_packages = pytest.mark.parametrize(
    "running_service", [name for name in SERVICES if name not in ("tensorboard", "mlflow-sqlite")], indirect=True
)
all_faults = pytest.mark.parametrize("fault", FAULTS)


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
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "verl.tracking.relay" in (command := process.info["cmdline"] or []) and str(path) in command
    ]


def assert_complete(service: TrackerService, path: Path) -> None:
    """By the relay, which is still at it, or by hand."""
    until(lambda: not relays(path))
    directory = RunDirectory.open(path)
    (state,) = drain(directory, [service.tracker], SECONDS)
    assert state.status == directory.status, state
    assert state.num_skipped == 0, state.skipped
    wanted, found = expected(path, service.as_shown), service.read(path)
    assert not differences(wanted.points, found.points)
    assert found.texts == wanted.texts
    if found.status is not None:
        assert found.status == wanted.status


def is_fed(path: Path) -> bool:
    return any(state.delivered for state in read_states(path))


def is_failing(path: Path) -> bool:
    return any(state.failures for state in read_states(path))


@with_faults
@all_faults
@pytest.mark.slow
def test_a_server_in_trouble_at_the_start(service: TrackerService, fault: Fault, tmp_path: Path) -> None:
    service.fail(fault)
    with start(service, tmp_path) as tracking:
        log(tracking, 1, STEPS)
        service.fail(None)
    assert_complete(service, tmp_path)


@with_faults
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[] if fault == 503 else pytest.mark.slow) for fault in FAULTS]
)
def test_a_server_in_trouble_in_the_middle(service: TrackerService, fault: Fault, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        log(tracking, 1, STEPS // 3)
        until(lambda: is_fed(tmp_path))
        service.fail(fault)
        log(tracking, STEPS // 3 + 1, 2 * STEPS // 3)
        time.sleep(3)  # uploads meet the fault
        service.fail(None)
        log(tracking, 2 * STEPS // 3 + 1, STEPS)
    assert_complete(service, tmp_path)


@with_faults
@all_faults
@pytest.mark.slow
def test_a_server_in_trouble_at_the_end(service: TrackerService, fault: Fault, tmp_path: Path) -> None:
    tracking = start(service, tmp_path)
    log(tracking, 1, STEPS)
    until(lambda: is_fed(tmp_path))
    service.fail(fault)
    log(tracking, STEPS + 1, STEPS + 5)
    tracking.finish("finished", seconds=1)
    time.sleep(2)
    service.fail(None)
    assert_complete(service, tmp_path)


@with_faults
@pytest.mark.slow
def test_training_ends_at_once_while_a_server_hangs_and_a_sync_completes_it(
    service: TrackerService, tmp_path: Path
) -> None:
    tracking = start(service, tmp_path)
    log(tracking, 1, 5)
    until(lambda: is_fed(tmp_path))
    service.fail("hang")
    log(tracking, 6, STEPS)
    before = time.monotonic()
    tracking.finish("finished", seconds=1)
    assert time.monotonic() - before < 10
    notes = [record.fields["text"] for record in JournalReader(tmp_path).records({"note"})]
    assert any("verl sync" in note for note in notes), notes
    for relay in relays(tmp_path):
        relay.kill()
    service.fail(None)
    assert_complete(service, tmp_path)


@with_packages
@pytest.mark.slow
def test_killing_relay_feeders_and_helpers_at_random_moments(
    service: TrackerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl.tracking.tracker_watch.CHECK_SECONDS", 0.1)
    monkeypatch.setattr("verl.tracking.relay_process.MOST_RESTARTS", 100)
    chance = random.Random(service.tracker)
    with start(service, tmp_path) as tracking:
        for round in range(8):
            log(tracking, 10 * round + 1, 10 * round + 10)
            time.sleep(chance.uniform(0.2, 3.0))
            victims = relays(tmp_path)
            victims += [child for relay in victims if relay.is_running() for child in relay.children(recursive=True)]
            if victims:
                chance.choice(victims).kill()
    assert_complete(service, tmp_path)


@with_packages
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow
def test_a_training_that_is_ended_from_outside(service: TrackerService, sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "1", service.tracker]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if int(line) >= 100:
                break
        os.kill(process.pid, sent)
    assert_complete(service, tmp_path)
    assert RunDirectory.open(tmp_path).status == "crashed"


@with_faults
@pytest.mark.slow
def test_a_rewind_while_the_server_is_away(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        log(tracking, 1, 20)
    until(lambda: not relays(tmp_path))
    service.fail("down")
    tracking = start(service, tmp_path)
    tracking.rewind(10)
    log(tracking, 11, 25)
    tracking.finish("finished", seconds=1)
    service.fail(None)
    assert_complete(service, tmp_path)
