"""Feed one tracker from the journal: the same code in the relay, in a thread, and inline.

The journal is the queue: a tracker reads it at its own pace, a bounded piece at a time, so a slow one delays
nobody and costs no memory. Its cursor is stored after the tracker has flushed: delivery is at least once, and
nothing twice for a tracker that uses its `state()` to take back what was not acknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from verl.errors import JournalError
from verl.journal import JournalReader, Kind, Record, RunDirectory
from verl.journal.locks import OwnedLock
from verl.tracking.delivery import deliver, deliver_end
from verl.tracking.feed_state import BROKEN, FEEDING, FeedState, state_path
from verl.tracking.logger import RunStatus, TrackedRun, TrainerLogger
from verl.tracking.table import load_tracker

log = logging.getLogger("verl.tracking")

BATCH_BYTES = 1024 * 1024
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class FeedSource:
    """The run that trackers are fed from.

    Attributes:
        directory: Run directory.
        attempt: The attempt being fed; its `finish` record ends the feed.
        total_steps: Steps of the run, if known.
    """

    directory: RunDirectory
    attempt: int
    total_steps: int | None = None


class Feed:
    """One tracker and how far it has been fed. Use it from one thread.

    Args:
        name: Tracker's name, also that of its state file.
        make: Makes the tracker; called by `open`.
        source: The run.
    """

    def __init__(self, name: str, make: Callable[[], TrainerLogger], source: FeedSource) -> None:
        self.name = name
        self._make = make
        self._source = source
        self._path = state_path(source.directory, name)
        self._lock = OwnedLock(self._path.with_suffix(".lock"), f"feeds the tracker {name!r} of")
        self._reader = JournalReader(source.directory)
        self._logger: TrainerLogger | None = None
        self._latest_attempt = 0
        self._problems = 0
        self.state = FeedState(name)
        self._cursor = self.state.cursor  # read and delivered, perhaps not flushed yet
        self.finish_record: Record | None = None

    @classmethod
    def by_name(cls, name: str, source: FeedSource) -> Feed:
        """Feed of a tracker of the table; its package is imported by `open`."""
        return cls(name, lambda: load_tracker(name)(), source)

    @property
    def is_overtaken(self) -> bool:
        """Whether a later attempt has begun: the run goes on, and another feed takes over."""
        return self._latest_attempt > self._source.attempt

    def lock(self) -> None:
        """Take the tracker's state for this process.

        Raises:
            JournalError: Another process feeds this tracker.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()

    def open(self) -> bool:
        """Read the state and open the tracker; False (and a state that says so) if that fails."""
        try:
            self.state = FeedState.load(self._path, self.name)
            self.state.attempt, self.state.status = self._source.attempt, FEEDING
            self._cursor = self.state.cursor
            info = self._source.directory.info
            logger = self._make()
            logger.open(
                TrackedRun(
                    run_id=info.run_id,
                    project=info.project,
                    experiment=info.experiment,
                    directory=self._source.directory.path,
                    attempt=self._source.attempt,
                    total_steps=self._source.total_steps,
                    state=self.state.own,
                )
            )
            self.state.where = logger.where()
        except Exception as error:
            self._failed("open", error)
            self.state.status = BROKEN
            self._save()
            return False
        self._logger = logger
        self._save()
        return True

    def pump(self) -> bool:
        """Deliver the next piece of the journal; False if there was nothing new."""
        assert self._logger is not None, "open the feed first"
        try:
            records, cursor = self._reader.follow(self._cursor, max_bytes=BATCH_BYTES)
        except OSError as error:  # a network disk that is away for a moment
            self._failed("read the journal", error)
            return False
        if self._reader.num_problems > self._problems:
            self._problems = self._reader.num_problems
            log.warning(
                "%s: the journal has lines that are no records, the last: %s", self.name, self._reader.problems[-1]
            )
        if not records:
            return False
        for record in records:
            self._deliver(record, self._logger)
        self._cursor = cursor
        self.state.seq = records[-1].seq
        self.state.delivered += len(records)
        self._flush(self._logger)
        return True

    def finish(self, status: RunStatus) -> None:
        """Tell the tracker how the run ended, and give the state back."""
        if self._logger is not None:
            self._flush(self._logger)
            try:
                error = self.finish_record.fields["error"] if self.finish_record else None
                deliver_end(status, error, self._logger)
                self.state.own = self._logger.state()
            except Exception as failure:
                self._failed("finish", failure)
            self.state.status = status
            self._save()
        self.leave()

    def leave(self) -> None:
        """Give the state back without an end: the run goes on elsewhere."""
        if self._logger is not None:
            try:
                self._logger.close()
            except Exception as error:
                self._failed("close", error)
        self._logger = None
        self._lock.release()

    def _deliver(self, record: Record, logger: TrainerLogger) -> None:
        self._latest_attempt = max(self._latest_attempt, record.attempt)
        if record.kind == Kind.FINISH and record.attempt == self._source.attempt:
            self.finish_record = record
        try:
            deliver(record, logger, self._source.directory.path)
        except Exception as error:
            self._failed(f"record {record.seq} ({record.kind}, step {record.step})", error)

    def _flush(self, logger: TrainerLogger) -> None:
        """The stored cursor stays behind while a tracker cannot flush, so the next attempt delivers again."""
        try:
            logger.flush()
            own = logger.state()
        except Exception as error:
            self._failed("flush", error)
        else:
            self.state.own, self.state.cursor = own, self._cursor
            self._save()

    def _save(self) -> None:
        try:
            self.state.save(self._path)
        except OSError as error:
            log.error("%s: cannot store how far it has been fed: %s", self.name, error)

    def _failed(self, what: str, error: Exception) -> None:
        self.state.fail(what, error)
        # The first one in full, then at 10, 100, ...: a tracker that is down must not fill the disk.
        if str(self.state.failures).strip("0") == "1":
            log.error("%s failed %d times, now at %s", self.name, self.state.failures, what, exc_info=error)


class FeedWorker:
    """A feed with a thread of its own."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._ending: RunStatus | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"verl-feed-{feed.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, status: RunStatus) -> None:
        """Nothing more will be written: deliver what is there, then finish with this status."""
        self._ending = status
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end; False if it is not there in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Look at the journal now."""
        self._wake.set()

    def _work(self) -> None:
        if not self._wait_for_lock():
            return
        if not self.feed.open():
            self.feed.leave()
            return
        while True:
            ending = self._ending  # read before the last look, so that nothing is missed
            has_more = self.feed.pump()
            if (ending or self.feed.finish_record) and self.feed.is_overtaken:
                self.feed.leave()
                return
            if has_more:
                continue
            if self.feed.finish_record:
                self.feed.finish(self.feed.finish_record.fields["status"])
                return
            if ending:
                self.feed.finish(ending)
                return
            self._pause()

    def _wait_for_lock(self) -> bool:
        """Wait for the feeder of an earlier attempt to end."""
        told = False
        while True:
            try:
                self.feed.lock()
            except JournalError as error:
                if not told:
                    log.warning("%s waits: %s", self.feed.name, error)
                    told = True
                if self._ending:
                    return False
                self._pause()
            else:
                return True

    def _pause(self) -> None:
        self._wake.wait(POLL_SECONDS)
        self._wake.clear()


def drain(directory: RunDirectory, trackers: list[str]) -> list[FeedState]:
    """Bring trackers up to the journal's end here and now, for a run whose training process is gone.

    Args:
        directory: The run.
        trackers: Names.

    Returns:
        Their states.

    Raises:
        JournalError: Another process feeds one of them.
        TrackerError: A name is unknown.
    """
    info = directory.info
    status = info.status
    source = FeedSource(directory, attempt=len(info.attempts))
    feeds = [Feed.by_name(name, source) for name in trackers]
    for feed in feeds:
        feed.lock()
        if not feed.open():
            feed.leave()
            continue
        while feed.pump():
            pass
        if feed.finish_record:
            feed.finish(feed.finish_record.fields["status"])
        elif status in ("finished", "failed", "killed", "crashed"):
            feed.finish(status)
        else:
            feed.leave()
    return [feed.state for feed in feeds]
