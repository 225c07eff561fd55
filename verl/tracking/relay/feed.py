"""Feed one tracker from the journal: the same code in the relay, in a thread, and inline.

The journal is the queue: a tracker reads it at its own pace, a bounded piece at a time, so a slow one delays
nobody and costs no memory. Its cursor moves only past what the tracker has flushed. When a tracker fails, it is
closed, and opened again after a while at that cursor: delivery is at least once, and nothing twice for a tracker that
uses its `state()` to take back what was not acknowledged. What later attempts superseded is not delivered; what was
superseded after it had been delivered is purged, or the tracker begins anew in a run of its own.
"""

from __future__ import annotations

import copy
import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from verl.errors import JournalError
from verl.journal import Cursor, Record, RunDirectory
from verl.journal.cursor import Position
from verl.journal.locks import OwnedLock
from verl.journal.records import stream_of
from verl.tracking.logger import (
    NewBranchError,
    ProcessSpoiledError,
    RunStatus,
    StateLostError,
    TrackedRun,
    TrainerLogger,
)
from verl.tracking.relay.delivery import is_for_trackers, is_shown_at_a_step
from verl.tracking.relay.feed_journal import FeedJournal
from verl.tracking.relay.feed_state import BROKEN, FEEDING, RETRYING, FeedState, state_path
from verl.tracking.relay.patience import Backoff, Patience
from verl.tracking.relay.tracker_session import TrackerSession
from verl.tracking.table import load_tracker

log = logging.getLogger("verl.tracking")

BATCH_BYTES = 256 * 1024
_ONE_RECORD = 1  # as a number of bytes: the journal gives at least one record
_FEW_RECORDS = 64  # may as well be delivered one by one
_MOST_PROBES = 8
_MOST_REBUILDS = 3  # in a row, without anything delivered in between
_NOTHING_YET = Position()
_OF_THE_TRACKER = (StateLostError, ProcessSpoiledError)
"""What a tracker says of itself: never a record's fault."""
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Never a record's fault, even if a smaller record fits."""


@dataclass(frozen=True, slots=True)
class FeedSource:
    """The run that trackers are fed from.

    Attributes:
        directory: Run directory.
        attempt: The attempt being fed; its `finish` record ends the feed.
        total_steps: Steps of the run, if known.
        proxies: Proxies for single trackers, by their names.
    """

    directory: RunDirectory
    attempt: int
    total_steps: int | None = None
    proxies: Mapping[str, str] = field(default_factory=dict)


class Advance(Enum):
    """What became of a call of `Feed.advance`."""

    MORE = auto()
    """Something was delivered; there may be more."""
    IDLE = auto()
    """There is nothing new, or it is too early to try again."""
    DONE = auto()
    """The end was delivered, or another feed has taken over."""


class Feed:
    """One tracker and how far it has been fed. Use it from one thread.

    Args:
        name: Tracker's name, also that of its state file.
        make: Makes the tracker; called each time it is opened.
        source: The run.
        patience: When to try again after a failure.
    """

    def __init__(
        self, name: str, make: Callable[[], TrainerLogger], source: FeedSource, patience: Patience | None = None
    ) -> None:
        self.name = name
        self._make = make
        self._source = source
        self._path = state_path(source.directory, name)
        self._lock = OwnedLock(self._path.with_suffix(".lock"), f"feeds the tracker {name!r} of")
        self._journal = FeedJournal(source.directory, name, source.attempt)
        self._session: TrackerSession | None = None
        self._ids: dict[str, Any] = {}
        self._rebuilds = 0
        self._farthest = (0, 0)  # attempt and number of the latest record ever acknowledged
        self._patience = patience or Patience()
        self._backoff = Backoff(self._patience)
        self._is_loaded = False
        self._skipped_before = 0
        self._budget = BATCH_BYTES
        self._doubtful = 0  # records from the cursor on, one of which may be why it failed
        self._tries = 0  # failures of the record at the cursor
        self._refused_kinds: set[str] = set()
        self._is_known = False  # the tracker works and refuses this kind: no use in waiting between its tries
        self.state = FeedState(name)
        self.is_done = False
        self.is_spoiled = False

    @classmethod
    def by_name(cls, name: str, source: FeedSource) -> Feed:
        """Feed of a tracker of the table; its package is imported when it is opened."""
        return cls(name, lambda: load_tracker(name)(), source)

    @property
    def is_overtaken(self) -> bool:
        """Whether a later attempt has begun: the run goes on, and another feed takes over."""
        return self._journal.latest_attempt > self._source.attempt

    @property
    def is_up_to_date(self) -> bool:
        """Whether the tracker works and had taken all that there was."""
        return (
            self._session is not None
            and self._session.is_open
            and self.state.status == FEEDING
            and not self._backoff.is_waiting
        )

    @property
    def is_complete(self) -> bool:
        """Whether the tracker has taken everything, to the end."""
        return self.is_done and self.state.num_skipped <= self._skipped_before

    @property
    def overdue(self) -> str | None:
        """What the tracker has been doing for longer than it may, in words; to be asked from another thread."""
        session = self._session
        return session.overdue if session else None

    def lock(self) -> None:
        """Take the tracker's state for this process.

        Raises:
            JournalError: Another process feeds this tracker.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()

    def hurry(self) -> None:
        """Try a failing tracker at once, not later."""
        self._backoff.hurry()

    def advance(self, ending: RunStatus | None = None) -> Advance:
        """Open the tracker if need be, deliver the next piece of the journal, or the end. Never raises.

        Args:
            ending: Status the run has ended with, if nothing more will be written.
        """
        if self.is_done:
            return Advance.DONE
        if self._backoff.is_waiting:
            return Advance.IDLE
        try:
            return self._advance(ending)
        except StateLostError as error:
            return self._begin_again(error)
        except Exception as error:
            # Packages leave threads, watches and half-open sessions behind when a session fails to begin or to end.
            self.is_spoiled |= isinstance(error, ProcessSpoiledError) or self._doing in ("open", "finish")
            self._failed(error)
            return Advance.IDLE

    def begin_anew(self) -> None:
        """Forget everything: at the next `advance` the whole run is built again, in a new branch.

        Raises:
            ValueError: The stored state is damaged.
        """
        self._close()
        self.state = FeedState.load(self._path, self.name)
        self.state.forget(branch=self.state.branch + 1)
        self.state.status = FEEDING
        self._save(is_durable=True)

    def give_up(self, reason: str) -> None:
        """Note that the tracker hangs; its process is about to be ended by the caller."""
        self.state.fail(self._doing, TimeoutError(reason), RETRYING)
        self._save()

    def leave(self) -> None:
        """Give the state back without an end: the run goes on elsewhere."""
        self._close()
        self._lock.release()

    @property
    def _doing(self) -> str:
        return self._session.doing if self._session else "open"

    def _advance(self, ending: RunStatus | None) -> Advance:
        if not self._is_loaded and self._has_ended_with(ending):
            return self._done()
        session = self._session or self._open()
        has_more = self._leave_out(session) if self._tries >= self._patience.tries else self._pump(session)
        finish = self._journal.finish
        if (ending or finish) and self.is_overtaken:
            return self._done()
        if has_more:
            return Advance.MORE
        status = finish.fields["status"] if finish else ending
        if status is None:
            return Advance.IDLE
        self._finish(status)
        return Advance.DONE

    def _has_ended_with(self, ending: RunStatus | None) -> bool:
        """Load the state; true if the tracker was told this end before, and nothing came after it."""
        self.state = FeedState.load(self._path, self.name)
        self._skipped_before = self.state.num_skipped
        was = (self.state.attempt, self.state.status)
        self.state.attempt, self.state.status = self._source.attempt, FEEDING
        self._is_loaded = True
        if ending is None or was != (self._source.attempt, ending):
            return False
        if self._journal.read(self.state.cursor, _ONE_RECORD)[0]:
            return False
        self.state.status = ending
        return True

    def _done(self) -> Advance:
        self.is_done = True
        self.leave()
        return Advance.DONE

    def _open(self) -> TrackerSession:
        info = self._source.directory.info
        logger = self._make()
        run = TrackedRun(
            run_id=info.run_id,
            project=info.project,
            experiment=info.experiment,
            directory=self._source.directory.path,
            attempt=self._source.attempt,
            total_steps=self._source.total_steps,
            state=self.state.own,
            branch=self.state.branch,
            proxy=self._source.proxies.get(self.name),
        )
        self._session = session = TrackerSession(self.name, logger, run.directory, self.state.last_step)
        session.open(run)
        self._journal.look_ahead(self.state.cursor)  # may read all of it, so not while the tracker cannot be opened
        self.state.where = logger.where()
        self._publish_ids(logger)
        self._save()
        return session

    def _begin_again(self, error: StateLostError) -> Advance:
        """What the tracker had is gone, or cannot be continued: it gets everything from the beginning."""
        self._rebuilds += 1
        if self._rebuilds > _MOST_REBUILDS:
            self._failed(error)
            return Advance.IDLE
        log.warning("%s: %s; it is built again from the journal", self.name, error)
        self._close()
        self.state.forget(branch=self.state.branch + isinstance(error, NewBranchError))
        self._skipped_before = 0
        self._passed(self._doubtful)
        self._save(is_durable=True)
        return Advance.MORE

    def _publish_ids(self, logger: TrainerLogger) -> None:
        """Tell `run.json` how the tracker calls the run."""
        ids = logger.ids()
        if not ids or ids == self._ids:
            return
        try:
            self._source.directory.set_tracker_id(self.name, **ids)
            self._ids = ids
        except (JournalError, OSError) as error:
            log.error("%s: its ids cannot be written to run.json: %s", self.name, error)

    def _pump(self, session: TrackerSession) -> bool:
        """Deliver the next piece of the journal; False if there was nothing new."""
        records, cursor = self._read(self.state.cursor, self._budget)
        if not records:
            return False
        self._expect(records)
        try:
            for record in records:
                session.deliver(record)
            self._acknowledge(records, cursor, session)
        except Exception as error:
            self._doubt(records, error, session)
            raise
        return True

    def _read(self, cursor: Cursor, max_bytes: int) -> tuple[list[Record], Cursor]:
        if self._session:
            self._session.doing = "read the journal"  # a network disk may be away for a moment
        return self._journal.read(cursor, max_bytes)

    def _expect(self, records: Iterable[Record]) -> None:
        """Store how far the tracker may come before it is given anything: what a rewind must take back, if it dies."""
        steps = [record.step for record in records if record.step is not None and is_shown_at_a_step(record)]
        highest = max(steps, default=None)
        if highest is not None and (self.state.last_step is None or highest > self.state.last_step):
            self.state.last_step = highest
            self._save()

    def _acknowledge(self, records: list[Record], cursor: Cursor, session: TrackerSession) -> None:
        session.flush("flush" if len(records) > 1 else f"flush of {session.doing}")
        self._note(session.logger)
        self.state.cursor, self.state.seq, self.state.status = cursor, records[-1].seq, FEEDING
        self.state.last_step = session.last_step
        self._rebuilds = 0
        self.state.delivered += len(records)
        self._passed(len(records))
        number = (records[-1].attempt, records[-1].seq)
        if number > self._farthest:  # to have got no farther than before is no success
            self._farthest = number
            self._backoff.succeeded()
        self._save()

    def _note(self, logger: TrainerLogger) -> None:
        """Keep what the tracker says of itself."""
        self.state.own = copy.deepcopy(logger.state())  # it may hand out what it goes on changing
        self.state.renamed = dict(logger.renamed())
        self.state.omit(logger.omissions)
        logger.omissions.clear()
        self._publish_ids(logger)

    def _doubt(self, records: list[Record], error: Exception, session: TrackerSession) -> None:
        """After a failure smaller pieces are delivered, until the record is found or it was not a record's fault."""
        if isinstance(error, _OF_THE_TRACKER):
            return
        if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
            return
        self._doubtful = max(self._doubtful, len(records))
        self._is_known = session.kind in self._refused_kinds and session.doing != "flush"
        if len(records) == 1:
            self._tries += 1
            self._budget = _ONE_RECORD
        else:
            self._budget = _ONE_RECORD if len(records) <= _FEW_RECORDS else max(self._budget // 32, _ONE_RECORD)

    def _passed(self, count: int) -> None:
        self._tries = 0
        self._doubtful = max(0, self._doubtful - count)
        if not self._doubtful:
            self._budget = BATCH_BYTES

    def _leave_out(self, session: TrackerSession) -> bool:
        """Leave out the record at the cursor, which failed again and again, if the tracker takes a later one.

        Otherwise it is the tracker that does not work, and the record is tried again later.
        """
        self._tries -= 1  # one more try before the next look
        records, after = self._read(self.state.cursor, _ONE_RECORD)
        if not records:
            return False
        record = records[0]
        refused = [(record, after, self.state.last_error)]
        position = after
        while len(refused) <= _MOST_PROBES:
            others, position = self._read(position, _ONE_RECORD)
            if not others:
                return self._leave_out_last(refused)
            session = self._session or self._open()
            try:
                self._expect(others)
                session.deliver(others[0])
                session.flush()
            except _OF_THE_TRACKER:
                raise
            except Exception as error:
                refused.append((others[0], position, f"{session.doing}: {error}"))
                self._close()
                continue
            if is_for_trackers(others[0]):
                self._close()  # takes the later record back
                if not self._takes(record, after):
                    self._skip(*refused[0])
                return True
        raise RuntimeError(f"the tracker takes none of {len(refused)} records; the first: {refused[0][2]}")

    def _leave_out_last(self, refused: list[tuple[Record, Cursor, str]]) -> bool:
        """Nothing comes after the records that could show whether the tracker works: its end may."""
        finish = self._journal.finish
        if finish is None:
            self._backoff.failed()
            return True
        if not self._takes(*refused[0][:2]):
            self._open()
            self._finish(finish.fields["status"], refused)
        return True

    def _takes(self, record: Record, after: Cursor) -> bool:
        """One last look at the record, now that the tracker is known to work: it may have come back just now."""
        session = self._session or self._open()
        try:
            session.deliver(record)
            self._acknowledge([record], after, session)
        except _OF_THE_TRACKER:
            raise
        except Exception as error:
            log.debug("%s: %s: %s", self.name, session.doing, error)
            self._close()
            return False
        return True

    def _skip(self, record: Record, after: Cursor, reason: str) -> None:
        stream = next(name for name in after.positions if name.startswith(f"{stream_of(record.kind)}-"))
        start = self.state.cursor.positions.get(stream, _NOTHING_YET)
        log.error("%s: left out after %d tries: %s", self.name, self._patience.tries, reason)
        self.state.skip(record, start, stream, reason)
        self.state.cursor, self.state.seq, self.state.status = after, record.seq, FEEDING
        self._refused_kinds.add(record.kind)
        self._backoff.succeeded()
        self._passed(1)
        self._save()

    def _finish(self, status: RunStatus, refused: Sequence[tuple[Record, Cursor, str]] = ()) -> None:
        """Tell the tracker how the run ended, and give the state back."""
        session = self._session
        assert session is not None
        finish = self._journal.finish
        session.finish(status, finish.fields["error"] if finish else None)
        self._note(session.logger)
        for record, after, reason in refused:
            self._skip(record, after, reason)
        self.state.status = status
        self._save()
        self._done()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _save(self, *, is_durable: bool = False) -> None:
        try:
            self.state.save(self._path, is_durable=is_durable)
        except OSError as error:
            log.error("%s: cannot store how far it has been fed: %s", self.name, error)

    def _failed(self, error: Exception) -> None:
        doing = self._doing
        self.state.fail(doing, error, BROKEN if doing == "open" else RETRYING)
        # The first one in full, then at 10, 100, ...: a tracker that is down must not fill the disk.
        if str(self.state.failures).strip("0") == "1":
            log.error("%s failed %d times, now at %s", self.name, self.state.failures, doing, exc_info=error)
        self._close()
        if not self._is_known:
            self._backoff.failed()
        self._is_known = False
        if self._is_loaded:  # a damaged state is left as it is, for people to see
            self._save()
