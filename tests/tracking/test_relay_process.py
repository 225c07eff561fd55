"""The relay as a process: whatever is killed, every journaled step reaches the tracker, once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tracker_runs import relays, until

from verl.errors import JournalError
from verl.journal import JournalReader, RunDirectory
from verl.tracking import Tracking, drain
from verl.tracking.relay.feed_state import FeedState, state_path
from verl.tracking.relay.relay import main as relay_main

PROGRAM = Path(__file__).with_name("training_program.py")


BROKEN = """
from verl.tracking import TrainerLogger

class Logger(TrainerLogger):
    def open(self, run):
        import no_such_package_at_all

    def log_metrics(self, metrics, step): ...

    def log_config(self, config): ...
"""


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the training program and waits until it has logged some steps; its relay is ended afterwards."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(first_step: int = 1, steps: int = 100, tracker: str = "tensorboard") -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), str(tmp_path), str(first_step), tracker]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            assert line.strip().isdigit(), line + process.stderr.read()
            if int(line) >= first_step + steps:
                break
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    for relay in relays(tmp_path):
        relay.kill()


def relay_itself(path: Path) -> psutil.Process:
    """The relay without its feeders."""
    found = relays(path)
    (first,) = [process for process in found if process.ppid() not in {other.pid for other in found}]
    return first


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def state(path: Path) -> FeedState:
    return FeedState.load(state_path(RunDirectory.open(path), "tensorboard"), "tensorboard")


def journaled(path: Path) -> list[tuple[int | None, float]]:
    records = JournalReader(path).canonical({"metrics"})
    return [(record.step, record.fields["metrics"]["attempt"]) for record in records]


def shown(path: Path) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    # The accumulator hides superseded scalars but not texts, of which some were shown before they were superseded.
    texts = Counter(event.step for event in accumulator.Tensors("sample/text_summary"))
    assert sorted(texts) == [record.step for record in JournalReader(path).canonical({"text"})]
    assert texts <= Counter(record.step for record in JournalReader(path).records({"text"}))
    return [(event.step, event.value) for event in accumulator.Scalars("attempt")]


def test_killed_training_is_delivered_to_the_last_step_and_marked_as_crashed(train, tmp_path: Path) -> None:
    kill(train())
    until(lambda: state(tmp_path).status == "crashed" and not relays(tmp_path))
    assert shown(tmp_path) == journaled(tmp_path)
    assert len(shown(tmp_path)) >= 100
    assert state(tmp_path).delivered == sum(1 for _ in JournalReader(tmp_path).records())
    assert RunDirectory.open(tmp_path).status == "crashed"
    assert '"status": "crashed"' in (tmp_path / "run.json").read_text()


def test_a_killed_relay_is_started_again_by_the_training(tmp_path: Path) -> None:
    with Tracking("p", "e", ["tensorboard"], log_dir=str(tmp_path)) as tracking:
        for step in range(1, 51):
            tracking.log_metrics({"attempt": 1.0}, step)
            tracking.log_text("sample", "x", step)
        until(lambda: bool(list(tmp_path.glob("events.out.tfevents.*"))) and bool(relays(tmp_path)))
        for relay in relays(tmp_path):
            relay.kill()
        for step in range(51, 101):
            tracking.log_metrics({"attempt": 1.0}, step)
            tracking.log_text("sample", "x", step)
    assert [step for step, _ in shown(tmp_path)] == list(range(1, 101))
    assert not [note for note in JournalReader(tmp_path).records({"note"}) if "still delivering" in note.fields["text"]]
    assert state(tmp_path).status == "finished"


@pytest.mark.parametrize(
    "milliseconds", [0, *(pytest.param(later, marks=pytest.mark.slow) for later in (20, 40, 90, 160))]
)
def test_when_both_are_killed_the_next_attempt_completes_without_repetition(
    milliseconds: int, train, tmp_path: Path
) -> None:
    process = train(steps=50)
    until(lambda: bool(list(tmp_path.glob("events.out.tfevents.*"))))
    time.sleep(milliseconds / 1000)  # any moment of the feeding
    for relay in relays(tmp_path):
        relay.kill()
    kill(process)
    until(lambda: not relays(tmp_path))
    last = journaled(tmp_path)[-1][0]
    assert last is not None
    kill(train(first_step=last - 9, steps=20))
    until(lambda: state(tmp_path).status == "crashed" and not relays(tmp_path))
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert shown(tmp_path) == journaled(tmp_path)


def test_what_two_dead_processes_left_is_completed_by_hand(train, tmp_path: Path) -> None:
    process = train()
    until(lambda: bool(relays(tmp_path)))
    for relay in relays(tmp_path):
        relay.kill()
    kill(process)
    until(lambda: not relays(tmp_path))
    (result,) = drain(RunDirectory.open(tmp_path), ["tensorboard"])
    assert (result.status, result.failures) == ("crashed", 0)
    assert shown(tmp_path) == journaled(tmp_path)
    before = next(tmp_path.glob("events.out.tfevents.*")).stat().st_size
    assert drain(RunDirectory.open(tmp_path), ["tensorboard"])[0].delivered == result.delivered
    assert shown(tmp_path) == journaled(tmp_path)
    assert next(tmp_path.glob("events.out.tfevents.*")).stat().st_size >= before


@pytest.mark.slow
def test_the_next_attempt_waits_for_the_relay_of_a_killed_one(train, tmp_path: Path) -> None:
    process = train(steps=20)
    until(lambda: bool(relays(tmp_path)))
    first = relay_itself(tmp_path)
    first.suspend()  # a relay that is slow to deliver
    kill(process)
    last = journaled(tmp_path)[-1][0]
    assert last is not None
    second = train(first_step=last + 1, steps=20)
    first.resume()
    until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
    kill(second)
    until(lambda: not relays(tmp_path))
    assert shown(tmp_path) == journaled(tmp_path)


def test_an_interrupt_of_the_terminal_does_not_reach_the_relay(tmp_path: Path) -> None:
    with Tracking("p", "e", ["tensorboard"], log_dir=str(tmp_path)) as tracking:
        until(lambda: bool(relays(tmp_path)))
        relay = relay_itself(tmp_path)
        assert os.getsid(relay.pid) != os.getsid(0)
        tracking.log_metrics({"loss": 1.0}, 1)


def test_a_terminated_relay_still_delivers_the_end(tmp_path: Path) -> None:
    """A cluster that ends a job sends SIGTERM to all its processes."""
    with Tracking("p", "e", ["tensorboard"], log_dir=str(tmp_path)) as tracking:
        until(lambda: "feeding" in (tmp_path / "relay" / "relay.log").read_text())
        relay = relay_itself(tmp_path)
        relay.send_signal(signal.SIGTERM)
        tracking.log_metrics({"attempt": 1.0}, 1)
        tracking.log_text("sample", "x", 1)
    assert shown(tmp_path) == [(1, 1.0)]
    assert state(tmp_path).status == "finished"


def test_the_relay_never_loads_torch_and_stays_small(train, tmp_path: Path) -> None:
    train(steps=300)
    until(lambda: state_path(RunDirectory.open(tmp_path), "tensorboard").exists() and state(tmp_path).delivered > 100)
    found = relays(tmp_path)
    assert len(found) == 2
    assert not [file.path for relay in found for file in relay.memory_maps() if "torch" in file.path]
    assert sum(relay.memory_full_info().pss for relay in found) < 120 * 2**20


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the relay outlives the training on purpose
def test_a_relay_that_died_and_a_tracker_that_fails_are_noted_once_while_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl.tracking.tracker_watch.CHECK_SECONDS", 0.05)
    (tmp_path / "broken_tracker.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in `python -c` or a notebook: the working folder
    run = tmp_path / "run"

    def notes() -> list[str]:
        return [note.fields["text"] for note in JournalReader(run).records({"note"})]

    tracking = Tracking("p", "e", ["broken_tracker:Logger"], log_dir=str(run))
    try:
        until(lambda: any("no_such_package_at_all" in text for text in notes()))
        for relay in relays(run):
            relay.kill()
        until(lambda: any("the relay ended by signal 9" in text and "started again" in text for text in notes()))
        assert sum("ended by signal" in text for text in notes()) == 1
    finally:
        tracking.finish("finished", seconds=0.1)
        for relay in relays(run):
            relay.kill()
    assert "still delivering" in notes()[-2]
    assert notes()[-1] == f"not complete: broken_tracker:Logger; to complete it later: verl sync {run}"
    del tracking
    gc.collect()


def test_a_relay_that_ends_for_good_is_named_with_its_code(tmp_path: Path) -> None:
    tracking = Tracking("p", "e", ["tensorboard"], log_dir=str(tmp_path))
    until(lambda: "feeding" in (tmp_path / "relay" / "relay.log").read_text())
    (tmp_path / "relay" / "tensorboard.json").unlink(missing_ok=True)
    for relay in relays(tmp_path):
        relay.kill()
    until(lambda: not relays(tmp_path))
    content = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_text("{")  # the next relay cannot start
    try:
        with pytest.raises(JournalError, match="damaged"):
            tracking.finish("finished")
    finally:
        (tmp_path / "run.json").write_bytes(content)
    texts = [note.fields["text"] for note in JournalReader(tmp_path).records({"note"})]
    assert [text for text in texts if "the relay ended with code 1" in text]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_tracker_that_cannot_be_imported_is_reported_and_others_are_fed(tmp_path: Path) -> None:
    (tmp_path / "broken_tracker.py").write_text(BROKEN)
    sys.path.insert(0, str(tmp_path))
    try:
        trackers = ["broken_tracker:Logger", "tensorboard"]
        tracking = Tracking("p", "e", trackers, log_dir=str(tmp_path / "run"))
        tracking.log_metrics({"attempt": 1.0}, 1)
        tracking.log_text("sample", "x", 1)
        tracking.finish("finished", seconds=8)
    finally:
        sys.path.remove(str(tmp_path))
        for relay in relays(tmp_path / "run"):
            relay.kill()
    assert shown(tmp_path / "run") == [(1, 1.0)]
    broken = FeedState.load(tmp_path / "run" / "relay" / "broken_tracker_Logger.json", "broken_tracker:Logger")
    assert broken.status == "broken"
    assert "no_such_package_at_all" in broken.last_error
    del tracking
    gc.collect()


@pytest.mark.slow
def test_the_relay_by_hand_finds_everything_in_the_journal(train, tmp_path: Path) -> None:
    process = train(steps=20)
    for relay in relays(tmp_path):
        relay.kill()
    kill(process)
    arguments = [sys.executable, "-m", "verl.tracking.relay", str(tmp_path), "--parent", "1"]
    assert subprocess.run(arguments, capture_output=True, timeout=60, check=False).returncode == 0
    assert shown(tmp_path) == journaled(tmp_path)


def test_the_relay_says_what_is_wrong_with_its_arguments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert relay_main([str(tmp_path / "nothing")]) == 1
    assert "no run directory" in caplog.text
