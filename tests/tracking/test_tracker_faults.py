"""Whatever a server does: in the end each tracker has the canonical journal, nothing twice."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import SERVICES, WITH_FAULTS
from tracker_runs import (
    SECONDS,
    assert_complete,
    assert_shows_the_journal,
    is_failing,
    is_fed,
    kill_all,
    log,
    relays,
    start,
    state_of,
    until,
)

from verl.cli.main import main as verl
from verl.errors import TrackerError
from verl.journal import JournalReader, RunDirectory
from verl.testing.services import Fault, TrackerService
from verl.tracking import Tracking

STEPS = 30
FAULTS: list[Fault] = ["down", "hang", 503, 429, 401]

with_faults = pytest.mark.parametrize("running_service", WITH_FAULTS, indirect=True)
all_faults = pytest.mark.parametrize("fault", FAULTS)


def start_after_the_look(service: TrackerService, path: Path) -> Tracking:
    """As a trainer does, which has looked before it loads anything."""
    directory = RunDirectory.create(path, project="verl tests", experiment="faults")
    opened = (directory, directory.start_attempt())
    return Tracking("verl tests", "faults", [service.tracker], {"a": 1}, opened=opened)


@with_faults
@all_faults
@pytest.mark.slow
def test_a_server_in_trouble_at_the_start(service: TrackerService, fault: Fault, tmp_path: Path) -> None:
    service.fail(fault)
    with start_after_the_look(service, tmp_path) as tracking:
        log(tracking, 1, STEPS)
        until(lambda: is_failing(tmp_path))
        service.fail(None)
    assert_complete(service, tmp_path)


@pytest.mark.parametrize("running_service", ["mlflow-server"], indirect=True)
@pytest.mark.slow
def test_a_login_that_is_refused_before_the_start_is_told_at_once(service: TrackerService, tmp_path: Path) -> None:
    service.fail(401)
    with pytest.raises(TrackerError, match=r"refuses the login \(401\)"):
        start(service, tmp_path)


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
    kill_all(tmp_path)
    service.fail(None)
    assert verl(["sync", str(tmp_path)]) == 0
    assert_shows_the_journal(service, tmp_path)


@with_faults
@pytest.mark.slow
def test_training_never_waits_for_a_server_that_never_answers(service: TrackerService, tmp_path: Path) -> None:
    service.fail("hang")
    tracking = start(service, tmp_path)
    for step in range(1, 1001):
        tracking.log_metrics({"loss": step / 64}, step)
    assert sum(1 for _ in JournalReader(tmp_path).records({"metrics"})) == 1000
    assert not is_fed(tmp_path), "the server has answered nothing"
    tracking.finish("finished", seconds=0)
    assert not is_fed(tmp_path)
    kill_all(tmp_path)
    service.fail(None)
    assert_complete(service, tmp_path)


@with_faults
@pytest.mark.slow
def test_a_login_that_ends_in_the_middle_is_mended_by_a_sync_with_the_new_one(
    service: TrackerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = start(service, tmp_path)
    log(tracking, 1, 10)
    until(lambda: is_fed(tmp_path))
    login = service.change_login(is_new=True)
    log(tracking, 11, STEPS)
    tracking.finish("finished", seconds=5)
    until(lambda: re.search("401|login", state_of(tmp_path, service.tracker).last_error))
    kill_all(tmp_path)
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    assert verl(["sync", str(tmp_path)]) == 0
    assert_shows_the_journal(service, tmp_path)


@with_faults
@pytest.mark.slow
def test_a_training_that_fails_while_the_server_is_away(service: TrackerService, tmp_path: Path) -> None:
    def train() -> None:
        with start(service, tmp_path) as tracking:
            log(tracking, 1, 10)
            service.fail("down")
            log(tracking, 11, 20)
            tracking.finish("failed", "ZeroDivisionError: of the loss", seconds=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    service.fail(None)
    assert_complete(service, tmp_path)
    assert RunDirectory.open(tmp_path).status == "failed"


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


TOGETHER = ("tensorboard", "mlflow-server", "wandb-online", "swanlab-online", "trackio")


@pytest.fixture(scope="module")
def all_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, TrackerService]]:
    """One of each tracker, at the same time."""
    services: dict[str, TrackerService] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in TOGETHER:
            module, _, kind = SERVICES[name].partition(":")
            service: TrackerService = getattr(importlib.import_module(module), kind)(tmp_path_factory.mktemp(name))
            for key, value in service.start().items():
                patch.setenv(key, value)
            services[name] = service
        yield services
    for service in services.values():
        service.stop()


@pytest.mark.parametrize("hanging", WITH_FAULTS)
@pytest.mark.slow
def test_one_tracker_that_hangs_delays_no_other(
    all_services: Mapping[str, TrackerService], hanging: str, tmp_path: Path
) -> None:
    names = [service.tracker for service in all_services.values()]
    tracking = Tracking("verl tests", "all", names, {"a": 1}, log_dir=str(tmp_path))
    log(tracking, 1, 5)
    until(lambda: is_fed(tmp_path))
    all_services[hanging].fail("hang")
    log(tracking, 6, STEPS)
    tracking.finish("finished", seconds=1)
    others = [service for name, service in all_services.items() if name != hanging]
    until(lambda: all(state_of(tmp_path, other.tracker).status == "finished" for other in others), SECONDS)
    assert state_of(tmp_path, all_services[hanging].tracker).status != "finished"
    for other in others:
        assert_shows_the_journal(other, tmp_path)
    all_services[hanging].fail(None)
    for service in all_services.values():
        assert_complete(service, tmp_path)
