"""A tracker that fails is tried again; nothing is lost to it that it would have taken."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl.journal import JournalReader, JournalWriter, RunDirectory
from verl.testing.trackers import RecordingLogger
from verl.tracking.logger import StateLostError, TrackedRun
from verl.tracking.relay.feed import Advance, Feed, FeedSource
from verl.tracking.relay.feed_state import FeedState
from verl.tracking.relay.feed_worker import FeedWorker, feed_to_the_end
from verl.tracking.relay.patience import Patience
from verl.tracking.relay.relay import Relay

QUICK = Patience(first_seconds=0.001, longest_seconds=0.002)


class Refusing(RecordingLogger):
    """Takes everything but the metrics of some steps; forgets on `open` what was not flushed, as TensorBoard does.

    Args:
        steps: Those steps.
        error: What it says to them.
    """

    def __init__(self, steps: set[int], error: Callable[[], Exception] = lambda: ValueError("bad number")) -> None:
        super().__init__()
        self.steps = steps
        self.error = error
        self.opened = 0
        self.log_calls = 0

    def open(self, run: TrackedRun) -> None:
        super().open(run)
        self.opened += 1
        del self.calls[run.state.get("calls", 0) :]

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.log_calls += 1
        if step in self.steps:
            raise self.error()
        super().log_metrics(metrics, step)

    def state(self) -> dict[str, int]:
        return {"calls": len(self.calls)}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    directory.start_attempt()
    return directory


@pytest.fixture
def journal(run: RunDirectory) -> Iterator[JournalWriter]:
    with JournalWriter(run, attempt=1) as writer:
        yield writer


def log_steps(journal: JournalWriter, first: int, last: int) -> None:
    for step in range(first, last + 1):
        journal.append("metrics", step, metrics={"loss": float(step)})


def end(journal: JournalWriter) -> None:
    journal.append("finish", 1, status="finished", error=None)


def feed_of(run: RunDirectory, logger: RecordingLogger, patience: Patience = QUICK) -> Feed:
    feed = Feed("t", lambda: logger, FeedSource(run, attempt=1), patience)
    feed.lock()
    return feed


def steps(logger: RecordingLogger) -> list[int]:
    return [step for step, _ in logger.points("loss")]


def advance_often(feed: Feed, times: int = 60) -> None:
    for _ in range(times):
        if feed.advance() is Advance.IDLE:
            time.sleep(0.003)  # longer than its longest wait


def saved(run: RunDirectory) -> FeedState:
    return FeedState.load(run.relay_cursor("t"), "t")


def test_a_passing_full_disk_loses_nothing(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing(set(), lambda: OSError(errno.ENOSPC, "no space left"))
    feed = feed_of(run, logger)
    log_steps(journal, 1, 10)
    advance_often(feed, 3)
    logger.steps = set(range(11, 21))
    log_steps(journal, 11, 20)
    journal.append("text", 20, tag="a", text="a small record that fits")
    advance_often(feed)
    assert steps(logger) == list(range(1, 11))
    assert saved(run).status == "retrying"
    assert saved(run).outages == 1
    logger.steps = set()
    log_steps(journal, 21, 30)
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == list(range(1, 31))
    assert feed.is_complete
    assert saved(run).num_skipped == 0


def test_a_record_that_is_refused_again_and_again_is_left_out_and_named(
    run: RunDirectory, journal: JournalWriter
) -> None:
    logger = Refusing({5})
    feed = feed_of(run, logger)
    log_steps(journal, 1, 10)
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert logger.status == "finished"
    assert not feed.is_complete
    (skipped,) = saved(run).skipped
    assert (skipped.kind, skipped.step, skipped.stream) == ("metrics", 5, "metrics-rank0")
    line = (run.journal / "metrics-rank0.jsonl").read_bytes()[skipped.offset :].splitlines()[0]
    assert b'"step":5' in line
    assert "bad number" in skipped.reason


def test_several_refused_records_in_a_row_do_not_stop_the_others(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing({3, 4, 5, 8, 10})
    feed = feed_of(run, logger)
    log_steps(journal, 1, 10)
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == [1, 2, 6, 7, 9]
    assert [skipped.step for skipped in saved(run).skipped] == [3, 4, 5, 8, 10]
    assert logger.status == "finished"


def test_no_record_is_left_out_while_the_tracker_takes_none(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing(set(range(3, 21)), lambda: ConnectionError("no server"))
    feed = feed_of(run, logger)
    log_steps(journal, 1, 20)
    advance_often(feed, 120)
    assert steps(logger) == [1, 2]
    assert saved(run).num_skipped == 0
    logger.steps = set()
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == list(range(1, 21))
    assert feed.is_complete


def test_the_last_record_is_not_given_up_before_the_end(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing({2})
    feed = feed_of(run, logger)
    log_steps(journal, 1, 2)
    advance_often(feed)
    assert saved(run).num_skipped == 0
    logger.steps = set()
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == [1, 2]


def test_a_flush_that_fails_brings_everything_again(run: RunDirectory, journal: JournalWriter) -> None:
    failures = iter([True] * 3)

    class Buffering(Refusing):
        def flush(self) -> None:
            if next(failures, False):
                raise TimeoutError("slow")

    logger = Buffering(set())
    log_steps(journal, 1, 5)
    end(journal)
    feed_to_the_end([feed_of(run, logger)], None, time.monotonic() + 10)
    assert steps(logger) == [1, 2, 3, 4, 5]
    assert saved(run).num_skipped == 0


def test_waits_grow_and_are_bounded(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing({1}, lambda: ConnectionError("no server"))
    feed = feed_of(run, logger, Patience(first_seconds=60, longest_seconds=60))
    log_steps(journal, 1, 1)
    for _ in range(50):
        feed.advance()
    assert logger.opened == 1  # all but the first look came too early
    feed.hurry()
    feed.advance()
    assert logger.opened == 2


def test_open_is_tried_again_until_it_works(run: RunDirectory, journal: JournalWriter) -> None:
    failures = iter([True] * 3)

    class Late(RecordingLogger):
        def open(self, run: TrackedRun) -> None:
            if next(failures, False):
                raise ConnectionError("no server yet")

    logger = Late()
    feed = feed_of(run, logger)
    log_steps(journal, 1, 3)
    feed.advance()
    assert saved(run).status == "broken"
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert steps(logger) == [1, 2, 3]
    assert feed.is_complete
    assert saved(run).status == "finished"


def test_an_end_that_fails_is_tried_again(run: RunDirectory, journal: JournalWriter) -> None:
    failures = iter([True] * 7)

    def fail_at_the_end(method: str) -> None:
        if method == "finish" and next(failures, False):
            raise TimeoutError("slow")

    logger = RecordingLogger(fail_at_the_end)
    feed = feed_of(run, logger)
    end(journal)
    feed_to_the_end([feed], None, time.monotonic() + 10)
    assert logger.status == "finished"
    assert feed.is_complete


def test_a_tracker_that_is_never_there_is_not_complete(run: RunDirectory, journal: JournalWriter) -> None:
    logger = Refusing({1}, lambda: ConnectionError("no server"))
    feed = feed_of(run, logger)
    log_steps(journal, 1, 1)
    feed_to_the_end([feed], "crashed", time.monotonic() + 0.05)
    assert not feed.is_complete
    assert saved(run).status == "retrying"
    assert feed_of(run, logger)  # the lock is free again


def test_a_tracker_that_lost_its_state_is_built_again(run: RunDirectory, journal: JournalWriter) -> None:
    log_steps(journal, 1, 5)
    first = Refusing(set())
    feed = feed_of(run, first)
    feed.advance()
    feed.leave()

    class Forgetful(RecordingLogger):
        def open(self, run: TrackedRun) -> None:
            if run.state:
                raise StateLostError("the file is gone")

    second = Forgetful()
    end(journal)
    feed_to_the_end([feed_of(run, second)], None, time.monotonic() + 10)
    assert steps(second) == [1, 2, 3, 4, 5]
    assert saved(run).delivered == sum(1 for _ in JournalReader(run).records())


def test_a_feed_that_ends_unexpectedly_counts_as_incomplete(run: RunDirectory, journal: JournalWriter) -> None:
    class Broken(Feed):
        def advance(self, ending: object = None) -> Advance:
            raise KeyError("a bug")

    worker = FeedWorker(Broken("t", RecordingLogger, FeedSource(run, attempt=1)))
    worker.start()
    assert worker.join(10)
    assert not worker.is_complete


@pytest.mark.parametrize("trackers", [["verl.testing.trackers:RecordingLogger"], []])
def test_the_relay_says_when_all_is_delivered(run: RunDirectory, journal: JournalWriter, trackers: list[str]) -> None:
    log_steps(journal, 1, 3)
    end(journal)
    assert Relay(FeedSource(run, attempt=1), trackers, parent=0).run()


def test_the_relay_says_when_a_tracker_is_not_complete(
    run: RunDirectory, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl.tracking.relay.relay.DRAIN_SECONDS", 0.5)
    end(journal)
    trackers = ["no_such_module_at_all:Logger", "verl.testing.trackers:RecordingLogger"]
    assert not Relay(FeedSource(run, attempt=1), trackers, parent=0).run()
