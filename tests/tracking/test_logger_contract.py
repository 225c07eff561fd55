"""What every tracker must do, run over all of them, each read back in its own way."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl.journal import JournalReader
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, TrainerLogger, load_tracker
from verl.tracking.logger import SHOWABLE
from verl.tracking.relay.feed_state import FeedState, read_states
from verl.tracking.table import BUILTIN

Points = list[tuple[int, float]]
KEY = "loss/policy_loss"

HOSTILE = (
    "\x1b]0;title\x07\x1b[2J[bold]markup[/] \u202ertl \x00nul \ud800 <script>alert(1)</script> | `code` " + "x" * 5000
)


@dataclass
class Case:
    """A tracker under test.

    Attributes:
        tracker: What is given to `Tracking`.
        points: Reads the metric `KEY` back.
        state: Reads the state of its feed; None for one that has none.
    """

    tracker: str | TrainerLogger
    points: Callable[[Path], Points]
    is_fed_from_journal: bool = True


def tensorboard_points(path: Path) -> Points:
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(KEY)]


# Those of other packages are in test_tracker_conformance.py, with their real servers and files.
@pytest.fixture(params=["console", "tensorboard", "recording"])
def case(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Case:
    if request.param == "tensorboard":
        return Case("tensorboard", tensorboard_points)
    if request.param == "console":

        def console_points(_: Path) -> Points:
            lines = re.findall(r"^step (\d+).*policy loss (\S+)", capsys.readouterr().out, re.MULTILINE)
            return [(int(step), float(value)) for step, value in lines]

        return Case("console", console_points, is_fed_from_journal=False)
    logger = RecordingLogger()
    return Case(logger, lambda _: logger.points(KEY))


@pytest.fixture(params=["relay or thread", "inline"])
def start(request: pytest.FixtureRequest, case: Case, tmp_path: Path) -> Callable[[], Tracking]:
    return lambda: Tracking(
        "p", "e", [case.tracker], {"a": {"b": 1}}, log_dir=str(tmp_path), async_log=request.param != "inline"
    )


def log_everything(tracking: Tracking, step: int) -> None:
    tracking.progress(step)
    tracking.log_metrics({KEY: step / 8, "nan": math.nan, "inf": math.inf, HOSTILE: 1.0}, step)
    tracking.log_histogram("reward/dist", np.arange(10), step)
    tracking.log_text("samples/prompt_response", HOSTILE, step)
    tracking.log_table(HOSTILE, ["a", HOSTILE], [[HOSTILE, None], [1.5, [1, {"x": HOSTILE}]]], step)
    tracking.log_image("image", np.zeros((2, 2)), step, "HW")
    tracking.log_embedding("tokens", np.ones((2, 2)), [HOSTILE, ""], step)
    tracking.log_artifact(tracking.home / "run.json", HOSTILE, step=step)
    tracking.writer.add_hparams({"lr": 1}, {"m": 2.0}, run_name=f"hp{step}")
    tracking.alert(HOSTILE, HOSTILE, "error")
    tracking.note(HOSTILE)


def states(path: Path) -> list[FeedState]:
    return read_states(path)


def test_a_run_with_everything_is_read_back(case: Case, start: Callable[[], Tracking], tmp_path: Path) -> None:
    with start() as tracking:
        for step in range(1, 4):
            log_everything(tracking, step)
    assert case.points(tmp_path) == [(1, 0.125), (2, 0.25), (3, 0.375)]
    if case.is_fed_from_journal:
        (state,) = states(tmp_path)
        assert (state.failures, state.last_error, state.status) == (0, "", "finished")
        assert state.delivered == sum(1 for _ in JournalReader(tmp_path).records())
    assert not [note for note in JournalReader(tmp_path).records({"note"}) if note.fields["level"] == "warning"]


def test_a_run_that_goes_on_is_shown_without_gap_or_repetition(
    case: Case, start: Callable[[], Tracking], tmp_path: Path
) -> None:
    with start() as tracking:
        for step in range(1, 6):
            tracking.log_metrics({KEY: float(step)}, step)
    with start() as tracking:
        tracking.rewind(3)
        for step in range(4, 7):
            tracking.log_metrics({KEY: -float(step)}, step)
    points = case.points(tmp_path)
    later = [(step, -float(step)) for step in range(4, 7)]
    assert points[-3:] == later
    assert points[:3] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert len(points) == len(set(points))


def test_a_run_that_fails_is_ended_as_failed(case: Case, start: Callable[[], Tracking], tmp_path: Path) -> None:
    def train() -> None:
        with start() as tracking:
            tracking.log_metrics({KEY: 1.0}, 1)
            raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        train()
    assert case.points(tmp_path) == [(1, 1.0)]
    if case.is_fed_from_journal:
        assert [state.status for state in states(tmp_path)] == ["failed"]


KIND_METHODS = {
    "text": "log_text",
    "histogram": "log_histogram",
    "table": "log_table",
    "embedding": "log_embedding",
    "trajectory": "log_trajectory",
    "alert": "alert",
    "rewind": "purge",
}


@pytest.mark.parametrize("kind", [*(load_tracker(name) for name in BUILTIN), RecordingLogger])
def test_a_tracker_declares_what_it_shows(kind: type[TrainerLogger]) -> None:
    written = {name for name in KIND_METHODS.values() if getattr(kind, name) is not getattr(TrainerLogger, name)}
    assert {KIND_METHODS[shown] for shown in kind.shows if shown in KIND_METHODS} <= written
    shows_files = bool(kind.shows & {"image", "artifact"})
    assert shows_files == (kind.log_artifact is not TrainerLogger.log_artifact)
    assert kind.shows <= {*SHOWABLE, "trajectory"}


def raising(*methods: str) -> Callable[[str], None]:
    def raise_in(method: str) -> None:
        if method in methods:
            raise ConnectionError(f"no server for {method}")

    return raise_in


@pytest.mark.slow
@pytest.mark.parametrize("async_log", [True, False])
def test_a_tracker_that_raises_loses_only_what_it_refuses(async_log: bool, tmp_path: Path) -> None:
    refused = iter([False, True, True, True, True, True])

    def refuse_the_second(method: str) -> None:
        if method == "log_metrics" and next(refused, False):
            raise ValueError("no such number")

    broken, healthy = RecordingLogger(refuse_the_second), RecordingLogger()
    tracking = Tracking("p", "e", [broken, healthy], log_dir=str(tmp_path), async_log=async_log)
    for step in range(1, 5):
        tracking.log_metrics({KEY: 1.0}, step)
    tracking.finish("finished", seconds=60)
    assert len(healthy.points(KEY)) == 4
    assert healthy.status == broken.status == "finished"
    assert {step for step, _ in broken.points(KEY)} >= {1, 3, 4}
    first, second = states(tmp_path)
    assert first.failures >= 5
    assert second.failures == 0


@pytest.mark.parametrize("async_log", [True, False])
def test_a_tracker_that_cannot_be_opened_does_not_stop_the_run(async_log: bool, tmp_path: Path) -> None:
    trackers = [RecordingLogger(raising("open"))]
    tracking = Tracking("p", "e", trackers, log_dir=str(tmp_path), async_log=async_log)
    tracking.log_metrics({KEY: 1.0}, 1)
    tracking.finish("finished", seconds=0.1)
    (state,) = states(tmp_path)
    assert state.status == "broken"
    assert "no server for open" in state.last_error
    (note,) = JournalReader(tmp_path).records({"note"})
    assert "did not take everything" in note.fields["text"]
    assert "no server for open" in note.fields["text"]


def test_what_a_tracker_could_not_flush_is_delivered_again_to_the_next_attempt(tmp_path: Path) -> None:
    failing = RecordingLogger(raising("flush"))
    tracking = Tracking("p", "e", [failing], log_dir=str(tmp_path), async_log=False)
    tracking.log_metrics({KEY: 1.0}, 1)
    tracking.finish("finished", seconds=0.1)
    assert failing.status is None
    healthy = RecordingLogger()
    with Tracking("p", "e", [healthy], log_dir=str(tmp_path)) as tracking:
        tracking.log_metrics({KEY: 2.0}, 2)
    assert healthy.points(KEY) == [(1, 1.0), (2, 2.0)]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_tracker_that_hangs_delays_nothing(gate: threading.Event, tmp_path: Path) -> None:
    def hang(method: str) -> None:
        if method == "log_metrics":
            gate.wait()

    slow, quick = RecordingLogger(hang), RecordingLogger()
    tracking = Tracking("p", "e", [slow, quick], log_dir=str(tmp_path))
    for step in range(1, 1001):  # would never end if one of them waited
        tracking.log_metrics({KEY: 1.0}, step)
    tracking.finish("finished", seconds=1.0)
    assert len(quick.points(KEY)) == 1000
    assert slow.points(KEY) == []
    problems = [note.fields["text"] for note in JournalReader(tmp_path).records({"note"})]
    assert problems == ["tracker 'RecordingLogger' did not take everything in 1 s"]


def test_every_call_knows_its_time_and_attempt(tmp_path: Path) -> None:
    logger = RecordingLogger()
    for _ in range(2):
        with Tracking("p", "e", [logger], log_dir=str(tmp_path)) as tracking:
            tracking.log_metrics({KEY: 1.0}, 1)
    records = list(JournalReader(tmp_path).records({"metrics"}))
    moments = [call.moment for call in logger.calls if call.method == "log_metrics"]
    assert [(moment.time, moment.attempt, moment.seq) for moment in moments] == [
        (record.t, record.attempt, record.seq) for record in records
    ]


def test_a_damaged_state_is_told_and_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    (tmp_path / "relay" / "RecordingLogger.json").write_text("{")
    tracking = Tracking("p", "e", [RecordingLogger()], log_dir=str(tmp_path))
    tracking.finish("finished", seconds=0.1)
    (state,) = states(tmp_path)
    assert state.status == "broken"
    assert "damaged" in state.last_error
