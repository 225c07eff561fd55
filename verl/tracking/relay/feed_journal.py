"""The journal as a tracker is to see it: what a later attempt superseded is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from verl.journal import Cursor, JournalReader, Kind, Record, RunDirectory
from verl.journal.canonical import Supersession

log = logging.getLogger("verl.tracking")

_PIECE_BYTES = 16 * 1024 * 1024


class FeedJournal:
    """Reads records from a cursor on, without those that are superseded as far as is known.

    Args:
        directory: The run.
        tracker: Name, for the log.

    Attributes:
        latest_attempt: Highest attempt whose records were read.
        finish: The `finish` record of `attempt`, once it was read.
    """

    def __init__(self, directory: RunDirectory, tracker: str, attempt: int) -> None:
        self.latest_attempt = 0
        self.finish: Record | None = None
        self._attempt = attempt
        self._directory = directory
        self._tracker = tracker
        self._reader = JournalReader(directory)
        self._supersession: Supersession | None = None
        self._problems = 0

    def look_ahead(self, cursor: Cursor) -> None:
        """Learn what is superseded after a cursor; to be called before reading begins there."""
        self._supersession = None
        if self._directory.info.last_attempt <= 1 and not any(self._reader.records({Kind.REWIND})):
            return
        supersession = Supersession()
        records, cursor = self._reader.follow(cursor, max_bytes=_PIECE_BYTES)
        while records:
            for record in records:
                supersession.add(record)
            records, cursor = self._reader.follow(cursor, max_bytes=_PIECE_BYTES)
        if not supersession.is_empty:
            self._supersession = supersession

    def read(self, cursor: Cursor, max_bytes: int) -> tuple[list[Record], Cursor]:
        """The next records and the cursor after them; none only if there is nothing new for a tracker.

        Args:
            cursor: Where to begin.
            max_bytes: About how much to read; one record at least.
        """
        while True:
            found, cursor = self._reader.follow(cursor, max_bytes=max_bytes)
            self._tell_problems()
            records = [kept for record in _once(found) if (kept := self._kept(record)) is not None]
            if records or not found:
                return records, cursor

    def _kept(self, record: Record) -> Record | None:
        self.latest_attempt = max(self.latest_attempt, record.attempt)
        if record.kind == Kind.FINISH and record.attempt == self._attempt:
            self.finish = record
        if self._supersession is None or record.kind in (Kind.RUN, Kind.FINISH):
            return record
        return self._supersession.kept(record)

    def _tell_problems(self) -> None:
        if self._reader.num_problems > self._problems:
            self._problems = self._reader.num_problems
            last = self._reader.problems[-1]
            log.warning("%s: the journal has lines that are no records, the last: %s", self._tracker, last)


def _once(records: list[Record]) -> Iterator[Record]:
    """Without the copies of a record that was written again after a full disk."""
    last = None
    for record in records:
        number = (record.attempt, record.seq)
        if number != last:
            yield record
        last = number
