"""A tracker gets the canonical run: what was superseded is left out, taken back, or a new branch is built."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from verl.journal import JournalReader, JournalWriter, RunDirectory
from verl.testing.trackers import RecordingLogger
from verl.tracking import NewBranchError, StateLostError, TrackedRun
from verl.tracking.relay.feed import Advance, Feed, FeedSource
from verl.tracking.relay.feed_state import FeedState
from verl.tracking.relay.feed_worker import feed_to_the_end
from verl.tracking.relay.patience import Patience

QUICK = Patience(first_seconds=0.001, longest_seconds=0.002)


class Remote(RecordingLogger):
    """Keeps one list per branch, and cannot forget; takes back on `open` what was not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: dict[int, list[Any]] = {}
        self.runs: list[TrackedRun] = []

    def open(self, run: TrackedRun) -> None:
        super().open(run)
        self.runs.append(run)
        self.calls = self.branches.setdefault(run.branch, [])
        del self.calls[run.state.get("calls", 0) :]

    def state(self) -> dict[str, int]:
        return {"calls": len(self.calls)}

    def ids(self) -> dict[str, Any]:
        return {"run_id": self.runs[-1].remote_id}

    def purge(self, to_step: int) -> None:
        raise NewBranchError("cannot forget")


class Keeping(Remote):
    """Its server keeps what came, acknowledged or not."""

    def open(self, run: TrackedRun) -> None:
        before = list(self.branches.get(run.branch, []))
        super().open(run)
        self.calls[:] = before


class Forgetting(Remote):
    """Can forget."""

    def purge(self, to_step: int) -> None:
        self._keep("purge", to_step)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, project="p", experiment="e")


def attempt(run: RunDirectory, first: int, last: int, *, to: int | None = None, status: str | None = None) -> int:
    """An attempt that logs its own number for some steps."""
    number = run.start_attempt()
    with JournalWriter(run, attempt=number) as journal:
        if to is not None:
            journal.append("rewind", to, to=to)
        for step in range(first, last + 1):
            journal.append("metrics", step, metrics={"attempt": float(number)})
        if status:
            journal.append("finish", last, status=status, error=None)
    run.finish_attempt(status or "crashed")
    return number


def feed(run: RunDirectory, logger: RecordingLogger, number: int, ending: Any = None) -> Feed:
    result = Feed("t", lambda: logger, FeedSource(run, attempt=number), QUICK)
    result.lock()
    feed_to_the_end([result], ending, time.monotonic() + 10)
    return result


def saved(run: RunDirectory) -> FeedState:
    return FeedState.load(run.relay_cursor("t"), "t")


def canonical(run: RunDirectory) -> list[tuple[int | None, float]]:
    return [(r.step, r.fields["metrics"]["attempt"]) for r in JournalReader(run).canonical({"metrics"})]


def test_a_tracker_that_comes_late_never_sees_what_was_superseded(run: RunDirectory) -> None:
    attempt(run, 1, 10)
    number = attempt(run, 6, 12, to=5, status="finished")
    logger = Remote()
    assert feed(run, logger, number).is_complete
    assert logger.points("attempt") == canonical(run)
    assert [step for step, _ in canonical(run)] == list(range(1, 13))
    assert saved(run).branch == 0


def test_a_tracker_that_cannot_forget_gets_the_canonical_run_in_a_new_branch(run: RunDirectory) -> None:
    logger = Remote()
    feed(run, logger, attempt(run, 1, 10))
    number = attempt(run, 6, 12, to=5, status="finished")
    assert feed(run, logger, number).is_complete
    assert logger.points("attempt") == canonical(run)
    assert [call.arguments[1] for call in logger.branches[0] if call.method == "log_metrics"] == list(range(1, 11))
    assert saved(run).branch == 1
    assert run.info.trackers["t"]["run_id"] == f"{run.run_id}-2"


def test_a_rewind_within_an_attempt_is_one_too(run: RunDirectory) -> None:
    """Such as a loop of one's own that goes back by itself."""
    logger = Remote()
    number = run.start_attempt()
    with JournalWriter(run, attempt=number) as journal:
        for step in range(1, 11):
            journal.append("metrics", step, metrics={"attempt": 1.0})
        live = Feed("t", lambda: logger, FeedSource(run, attempt=number), QUICK)
        live.lock()
        feed_to_the_end([live], None, time.monotonic() + 10)
        journal.append("rewind", 5, to=5)
        for step in range(6, 9):
            journal.append("metrics", step, metrics={"attempt": 2.0})
        journal.append("finish", 8, status="finished", error=None)
    run.finish_attempt("finished")
    assert feed(run, logger, number, "finished").is_complete
    assert logger.points("attempt") == canonical(run)
    assert (saved(run).branch, saved(run).failures) == (1, 0)
    late = Remote()
    other = Feed("late", lambda: late, FeedSource(run, attempt=number), QUICK)
    other.lock()
    feed_to_the_end([other], "finished", time.monotonic() + 10)
    assert late.points("attempt") == canonical(run)


def test_the_end_of_an_earlier_attempt_is_nothing_that_a_rewind_takes_back(run: RunDirectory) -> None:
    logger = Remote()
    feed(run, logger, attempt(run, 1, 10, status="finished"))
    number = attempt(run, 6, 12, to=5, status="finished")
    feed(run, logger, number, "finished")
    assert saved(run).branch == 1
    assert saved(run).failures == 0


def test_a_tracker_that_can_forget_is_told_to_and_continues_the_same_run(run: RunDirectory) -> None:
    logger = Forgetting()
    feed(run, logger, attempt(run, 1, 10))
    feed(run, logger, attempt(run, 6, 12, to=5, status="finished"))
    assert [call.arguments for call in logger.calls if call.method == "purge"] == [(5,)]
    assert saved(run).branch == 0
    assert run.info.trackers["t"]["run_id"] == run.run_id


def test_resuming_where_nothing_is_superseded_continues_the_same_run(run: RunDirectory) -> None:
    logger = Remote()
    feed(run, logger, attempt(run, 1, 10))
    feed(run, logger, attempt(run, 11, 12, to=10, status="finished"))
    assert logger.points("attempt") == canonical(run)
    assert list(logger.branches) == [0]
    assert logger.runs[-1].state == {"calls": 10}


def test_what_was_given_but_never_acknowledged_is_taken_back_too(run: RunDirectory) -> None:
    """A feeder that is killed in the middle of a batch may have shown steps that a rewind supersedes later."""

    class Dying(Remote):
        def flush(self) -> None:
            raise KeyboardInterrupt

    logger = Dying()
    number = attempt(run, 1, 10)
    victim = Feed("t", lambda: logger, FeedSource(run, attempt=number), QUICK)
    victim.lock()
    with pytest.raises(KeyboardInterrupt):
        victim.advance()
    victim.leave()
    later = Keeping()
    later.branches = logger.branches
    feed(run, later, attempt(run, 6, 8, to=5, status="finished"))
    assert later.points("attempt") == canonical(run)
    assert saved(run).branch == 1


def test_a_tracker_that_lost_its_state_in_the_middle_is_built_again_in_the_same_branch(run: RunDirectory) -> None:
    class Losing(Remote):
        lost = False

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            if step == 7 and not self.lost:
                self.lost = True
                raise StateLostError("the file is gone")
            super().log_metrics(metrics, step)

    logger = Losing()
    assert feed(run, logger, attempt(run, 1, 10, status="finished")).is_complete
    assert logger.points("attempt") == canonical(run)
    assert logger.runs[-1].state == {}
    assert (saved(run).branch, saved(run).failures) == (0, 0)


def test_a_tracker_that_loses_its_state_for_ever_is_a_failing_one(run: RunDirectory) -> None:
    class AlwaysLosing(Remote):
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            raise StateLostError("gone again")

    number = attempt(run, 1, 3)
    victim = Feed("t", AlwaysLosing, FeedSource(run, attempt=number), QUICK)
    victim.lock()
    assert [victim.advance() for _ in range(4)] == [Advance.MORE] * 3 + [Advance.IDLE]
    assert "gone again" in saved(run).last_error
    victim.leave()


def test_who_was_told_the_end_is_not_opened_again_for_it(run: RunDirectory) -> None:
    logger = Remote()
    number = attempt(run, 1, 3, status="finished")
    feed(run, logger, number, "finished")
    again = Remote()
    assert feed(run, again, number, "finished").is_complete
    assert again.runs == []
    assert saved(run).status == "finished"


def test_a_fresh_build_is_a_new_branch(run: RunDirectory) -> None:
    logger = Remote()
    number = attempt(run, 1, 3, status="finished")
    feed(run, logger, number, "finished")
    anew = Feed("t", lambda: logger, FeedSource(run, attempt=number), QUICK)
    anew.lock()
    anew.begin_anew()
    anew.leave()
    assert feed(run, logger, number, "finished").is_complete
    assert logger.points("attempt") == canonical(run)
    assert list(logger.branches) == [0, 1]


def test_what_a_tracker_leaves_out_or_renames_is_counted_and_kept(run: RunDirectory) -> None:
    class Picky(Remote):
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.leave_out("attempt", step, "not liked")

        def renamed(self) -> dict[str, str]:
            return {"a@b": "a_at_b"}

    feed(run, Picky(), attempt(run, 1, 3, status="finished"))
    omission = saved(run).omissions["attempt"]
    assert (omission.count, omission.step, omission.reason) == (3, 3, "not liked")
    assert saved(run).renamed == {"a@b": "a_at_b"}
