"""Whichever process dies: in the end each tracker has the canonical journal, nothing twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import SERVICES
from tracker_runs import assert_complete, is_fed, log, relay_and_feeder, relays, start, state_of, until

from verl.journal import RunDirectory
from verl.testing.services import TrackerService

PROGRAM = Path(__file__).with_name("training_program.py")

all_services = pytest.mark.parametrize("running_service", SERVICES, indirect=True)


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that died is noticed soon, and begun again as often as a test needs."""
    monkeypatch.setattr("verl.tracking.tracker_watch.CHECK_SECONDS", 0.1)
    monkeypatch.setattr("verl.tracking.relay.relay_process.MOST_RESTARTS", 100)


@all_services
@pytest.mark.slow
@pytest.mark.parametrize("victim", [pytest.param(0, id="relay"), pytest.param(1, id="feeder")])
def test_a_relay_or_feeder_that_is_killed(service: TrackerService, victim: int, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        log(tracking, 1, 10)
        until(lambda: is_fed(tmp_path))
        log(tracking, 11, 20)
        first = relay_and_feeder(tmp_path)[victim]
        first.kill()
        log(tracking, 21, 30)
        until(lambda: relay_and_feeder(tmp_path)[victim].pid != first.pid)
        log(tracking, 31, 40)
    assert_complete(service, tmp_path)


@pytest.mark.parametrize("running_service", ["wandb-online", "wandb-offline"], indirect=True)
@pytest.mark.slow
def test_a_helper_of_a_package_that_is_killed(service: TrackerService, tmp_path: Path) -> None:
    killed: set[int] = set()

    def kill_one() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in relay_and_feeder(tmp_path)[1].children():
                if child.name() == "wandb-core" and child.pid not in killed:
                    child.kill()
                    killed.add(child.pid)
                    return True
        return False

    with start(service, tmp_path) as tracking:
        for last in (10, 20, 30):
            log(tracking, last - 9, last)
            until(lambda last=last: state_of(tmp_path, service.tracker).delivered >= 2 * last)
            until(kill_one)
        log(tracking, 31, 40)
    assert_complete(service, tmp_path)
    assert len(killed) == 3


@all_services
@pytest.mark.slow
def test_relay_feeders_and_helpers_killed_at_random_moments(service: TrackerService, tmp_path: Path) -> None:
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


@all_services
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


@all_services
@pytest.mark.slow
def test_training_relay_and_feeders_killed_at_once(service: TrackerService, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "1", service.tracker]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if (int(line) >= 40 and is_fed(tmp_path)) or int(line) >= 5000:
                break
        for victim in [psutil.Process(process.pid), *relays(tmp_path)]:
            victim.kill()
    RunDirectory.open(tmp_path).finish_attempt("crashed", 1)
    assert_complete(service, tmp_path)
