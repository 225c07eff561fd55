"""Each tracker has a process of its own: one that hangs, dies or is spoiled delays no other and loses nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from verl.journal import JournalReader
from verl.tracking import Tracking
from verl.tracking.relay.feed_state import FeedState

TRACKERS = '''
import json, os, time
from verl.tracking import TrainerLogger
from verl.tracking.logger import Limits, ProcessSpoiledError

class Lines(TrainerLogger):
    """A file of lines; what was not acknowledged is cut off again."""

    def open(self, run):
        self.path = run.directory / f"{type(self).__name__}.txt"
        self.once = run.directory / f"{type(self).__name__}.once"
        self.path.touch()
        os.truncate(self.path, run.state.get("size", 0))
        self.file = self.path.open("a")

    def log_metrics(self, metrics, step):
        self.file.write(f"{step} {os.getpid()}\\n")

    def log_config(self, config): ...

    def flush(self):
        self.file.flush()

    def state(self):
        return {"size": self.path.stat().st_size}

    def is_first(self):
        if self.once.exists():
            return False
        self.once.touch()
        return True

    def finish(self, status):
        self.file.write(f"{status} {os.getpid()}\\n")
        self.file.close()

class Hanging(Lines):
    limits = Limits(open=60, call=0.5, finish=60)

    def log_metrics(self, metrics, step):
        super().log_metrics(metrics, step)
        if step == 5 and self.is_first():
            self.file.flush()
            time.sleep(3600)

class Spoiled(Lines):
    def log_metrics(self, metrics, step):
        super().log_metrics(metrics, step)
        if step == 5 and self.is_first():
            raise ProcessSpoiledError("its helper died")

class Dying(Lines):
    def log_metrics(self, metrics, step):
        super().log_metrics(metrics, step)
        if step == 5 and self.is_first():
            os._exit(3)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"trackers_{os.getpid()}_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(TRACKERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def lines(run: Path, kind: str) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in (run / f"{kind}.txt").read_text().splitlines()]  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["Hanging", "Spoiled", "Dying"])
def test_the_process_of_a_tracker_in_trouble_is_replaced_and_nothing_is_lost(
    kind: str, module: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with Tracking("p", "e", [f"{module}:{kind}", f"{module}:Lines"], log_dir=str(run)) as tracking:
        for step in range(1, 11):
            tracking.log_metrics({"loss": 1.0}, step)
    for name in (kind, "Lines"):
        assert [first for first, _ in lines(run, name)] == [*map(str, range(1, 11)), "finished"]
    assert len({pid for _, pid in lines(run, "Lines")}) == 1
    assert (run / f"{kind}.once").exists()
    state = next(path for path in (run / "relay").glob(f"*{kind}.json"))
    assert FeedState.load(state, kind).status == "finished"


def test_a_tracker_that_hangs_is_named_with_what_it_was_doing(module: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Tracking("p", "e", [f"{module}:Hanging"], log_dir=str(run)) as tracking:
        for step in range(1, 11):
            tracking.log_metrics({"loss": 1.0}, step)
    text = (run / "relay" / "relay.log").read_text()
    assert "did not answer within 0 s" in text or "did not answer within 1 s" in text
    (note,) = [r.fields["text"] for r in JournalReader(run).records({"note"}) if "did not answer" in r.fields["text"]]
    assert "step 5" in note


def test_a_feeder_that_is_killed_is_begun_again_by_the_relay(module: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Tracking("p", "e", [f"{module}:Lines"], log_dir=str(run)) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        deadline = time.monotonic() + 30
        while not (run / "Lines.txt").exists() or not lines(run, "Lines"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(int(lines(run, "Lines")[0][1]), signal.SIGKILL)
        for step in range(2, 6):
            tracking.log_metrics({"loss": 1.0}, step)
    assert [first for first, _ in lines(run, "Lines")] == ["1", "2", "3", "4", "5", "finished"]
    assert len({pid for _, pid in lines(run, "Lines")}) == 2


def test_feeders_end_with_their_relay(module: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tracking = Tracking("p", "e", [f"{module}:Lines"], log_dir=str(run))
    tracking.log_metrics({"loss": 1.0}, 1)
    deadline = time.monotonic() + 30
    while not (run / "Lines.txt").exists() or not lines(run, "Lines"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    feeder = psutil.Process(int(lines(run, "Lines")[0][1]))
    relay = feeder.parent()
    assert relay is not None
    relay.kill()
    feeder.wait(10)
    tracking.finish("finished")  # the relay is started again for the end
    assert [first for first, _ in lines(run, "Lines")] == ["1", "finished"]
