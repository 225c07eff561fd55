"""All trackers of one training process: the console, the relay, and the user's own objects."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from verl.errors import TrackerError
from verl.journal import Record
from verl.tracking.console.screen_feed import ScreenFeed
from verl.tracking.diagnosis.preflight import preflight_or_raise
from verl.tracking.logger import RunStatus, TrackedRun, TrainerLogger
from verl.tracking.relay.feed import Advance, Feed, FeedSource
from verl.tracking.relay.feed_state import read_states
from verl.tracking.relay.feed_worker import FeedWorker, feed_to_the_end
from verl.tracking.relay.relay_process import RelayProcess
from verl.tracking.table import BUILTIN, IN_TRAINING_PROCESS, check_class, load_tracker

_OPEN_LOOK_SECONDS = 0.02

Tracker = str | type[TrainerLogger] | TrainerLogger

SCREEN_SECONDS = 3.0
"""Longest time that the end of training waits for the terminal to take the summary."""


class TrackerSet:
    """Starts trackers, keeps them fed, and ends them.

    Args:
        trackers: Names, classes and objects.
        source: The run.
        is_inline: Feed all but the console in the calling thread, without a relay process.
    """

    def __init__(self, trackers: Sequence[Tracker], source: FeedSource, *, is_inline: bool) -> None:
        self._source = source
        named = list(dict.fromkeys(tracker for tracker in trackers if isinstance(tracker, str)))
        self._by_name = [name for name in named if name not in IN_TRAINING_PROCESS]
        self._on_screen = [name for name in named if name in IN_TRAINING_PROCESS]
        self._by_relay = [] if is_inline else self._by_name
        self._feeds = [Feed.by_name(name, source) for name in self._by_name] if is_inline else []
        for tracker in trackers:
            if not isinstance(tracker, str):
                self._feeds.append(Feed(self._free_name(tracker), _maker(tracker), source))
        self.names = self._on_screen + self._by_relay + [feed.name for feed in self._feeds]
        self._is_inline = is_inline
        self._thread = threading.get_ident()
        self._screens: list[ScreenFeed] = []
        self._workers: list[FeedWorker] = []
        self._relay: RelayProcess | None = None
        self._known: dict[str, tuple[int, int]] = {}

    @staticmethod
    def check(trackers: Sequence[object], proxies: Mapping[str, str] | None = None) -> list[str]:
        """Make sure that every tracker can work, before anything is started.

        Args:
            trackers: Names, classes and objects.
            proxies: Proxies for single trackers, by their names.

        Returns:
            What does not work now but may later, in sentences.

        Raises:
            TrackerError: One is unknown, not installed, has no login, or is no tracker at all.
        """
        for tracker in trackers:
            if isinstance(tracker, type):
                check_class(tracker, tracker.__qualname__)
            elif not isinstance(tracker, str | TrainerLogger):
                raise TrackerError(f"{tracker!r} is no tracker; give a name, or a TrainerLogger class or object")
        return preflight_or_raise([name for name in trackers if isinstance(name, str)], proxies or {})

    def start(self) -> None:
        """Open everything.

        Raises:
            JournalError: Inline, if another process still feeds one of the trackers.
        """
        self._news_of_feeds()  # those of earlier attempts are known
        for name in self._on_screen:
            self._screens.append(ScreenFeed(load_tracker(name)(), self._opened_run()))
        if self._by_relay:
            self._relay = RelayProcess(self._source, self._by_relay)
        if self._is_inline:
            self._lock_feeds()
        else:
            self._workers = [FeedWorker(feed) for feed in self._feeds]
            for worker in self._workers:
                worker.start()

    def push(self, record: Record) -> None:
        """Take note of a record that was just written."""
        for screen in self._screens:
            screen.push(record)
        # Alerts and notes also come from threads of their own; trackers are called by one alone, and look at the
        # journal at its next record.
        if self._is_inline and threading.get_ident() == self._thread:
            for feed in self._feeds:
                while feed.advance() is Advance.MORE:
                    pass

    def wait_until_open(self, seconds: float) -> None:
        """Wait until each tracker with a server is open or has failed, but no longer than this."""
        waiting = {name for name in self._by_relay if name in BUILTIN and BUILTIN[name].is_remote}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            states = read_states(self._source.directory.path)
            waiting -= {state.tracker for state in states if state.attempt == self._source.attempt}
            if waiting:
                time.sleep(_OPEN_LOOK_SECONDS)

    def progress(self, step: int) -> None:
        """Training begins a step."""
        for screen in self._screens:
            screen.progress(step)

    def news(self) -> list[str]:
        """What went wrong since the last call, in sentences; starts the relay again if it died."""
        told = self._relay.check() if self._relay else None
        return ([told] if told else []) + self._news_of_feeds()

    def _news_of_feeds(self, known: Collection[str] = ()) -> list[str]:
        sentences = []
        for state in read_states(self._source.directory.path):
            if state.tracker in known:
                continue
            outages, skipped = self._known.get(state.tracker, (0, 0))
            if state.outages > outages:
                sentences.append(
                    f"tracker {state.tracker!r} fails ({state.last_error}); it is tried again, and gets everything then"
                )
            if state.num_skipped > skipped and state.skipped:
                sentences.append(
                    f"tracker {state.tracker!r} refused {state.num_skipped - skipped} record(s) for good, "
                    f"the last: {state.skipped[-1].reason}; the journal has them"
                )
            self._known[state.tracker] = (state.outages, state.num_skipped)
        return sentences

    def hurry(self) -> None:
        """Deliver now rather than in a moment (the relay looks several times a second anyway)."""
        for worker in self._workers:
            worker.hurry()

    def finish(self, status: RunStatus, error: str | None, seconds: float) -> list[str]:
        """Wait, but not for ever, until everything is delivered; then close the console.

        Args:
            status: How the run ended; its `finish` record is written already.
            error: What went wrong.
            seconds: Longest wait for the trackers.

        Returns:
            What people should know about trackers that are not complete.
        """
        problems = []
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.end(status)
        for feed in self._feeds:
            feed.hurry()
        if self._relay and (problem := self._relay.wait(seconds)):
            problems.append(problem)
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        if self._is_inline:
            feed_to_the_end(self._feeds, status, deadline)
        problems += [
            f"tracker {feed.name!r} did not take everything in {seconds:.0f} s" + _last_error(feed)
            for feed in self._feeds
            if not feed.is_complete
        ]
        problems += self._news_of_feeds(known=[feed.name for feed in self._feeds])
        if incomplete := self._incomplete(status):
            problems.append(f"not complete: {', '.join(incomplete)}; to complete it later: {self._sync_command()}")
        for screen in self._screens:
            if not screen.finish(status, error, SCREEN_SECONDS):
                problems.append("the terminal does not take any output; the console was left behind")
            elif screen.failures:
                problems.append(f"the console could not show {screen.failures} things, the last: {screen.last_error}")
        return problems

    def _incomplete(self, status: RunStatus) -> list[str]:
        """Trackers with a name that were not told the end of this attempt."""
        states = {state.tracker: state for state in read_states(self._source.directory.path)}
        told = {
            name for name, state in states.items() if (state.attempt, state.status) == (self._source.attempt, status)
        }
        return [name for name in self.names if name in self._by_name and name not in told]

    def _sync_command(self) -> str:
        return f"verl sync {shlex.quote(str(self._source.directory.path))}"

    def _lock_feeds(self) -> None:
        locked: list[Feed] = []
        try:
            for feed in self._feeds:
                feed.lock()
                locked.append(feed)
        except BaseException:
            for feed in locked:
                feed.leave()
            raise

    def _opened_run(self) -> TrackedRun:
        directory = self._source.directory
        info = directory.info
        return TrackedRun(
            info.run_id,
            info.project,
            info.experiment,
            directory.path,
            self._source.attempt,
            self._source.total_steps,
        )

    def _free_name(self, tracker: TrainerLogger | type[TrainerLogger]) -> str:
        kind = tracker if isinstance(tracker, type) else type(tracker)
        taken = {feed.name for feed in self._feeds}
        name, number = kind.__name__, 1
        while name in taken:
            number += 1
            name = f"{kind.__name__}-{number}"
        return name


def _last_error(feed: Feed) -> str:
    return f"; the last failure: {feed.state.last_error}" if feed.state.last_error else ""


def _maker(tracker: TrainerLogger | type[TrainerLogger]) -> Callable[[], TrainerLogger]:
    return tracker if isinstance(tracker, type) else lambda: tracker
