"""Run feeds: each in a thread of its own, or to the end here and now."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from verl.errors import JournalError
from verl.tracking.logger import RunStatus
from verl.tracking.relay.feed import Advance, Feed

log = logging.getLogger("verl.tracking")

POLL_SECONDS = 0.2
_LOCK_SECONDS = 10.0
"""How long to wait, while draining, for a feeder whose relay was killed a moment ago."""


class FeedWorker:
    """A feed with a thread of its own.

    Args:
        feed: The feed, not yet locked.
        ending: Status the run has ended with, if nothing more will be written.
        is_replaceable: Whether its process is begun again if the tracker's package has spoiled it.
        is_draining: End as soon as the tracker has everything that there is, and do not wait long for another feeder.

    Attributes:
        is_broken: Whether the thread ended by an error that it cannot handle.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        ending: RunStatus | None = None,
        is_draining: bool = False,
        is_replaceable: bool = False,
    ) -> None:
        self.feed = feed
        self.is_broken = False
        self._ending: RunStatus | None = ending
        self._is_draining = is_draining
        self._is_replaceable = is_replaceable
        self._is_drained = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"verl-feed-{feed.name}", daemon=True)

    @property
    def is_complete(self) -> bool:
        """Whether everything was delivered: to the end, or, while draining, all that there was."""
        return (self.feed.is_complete or self._is_drained) and not self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, status: RunStatus) -> None:
        """Nothing more will be written: deliver what is there, then finish with this status."""
        self._ending = status
        self.feed.hurry()
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end; False if it is not there in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Look at the journal now."""
        self._wake.set()

    def _work(self) -> None:
        try:
            if not self._wait_for_lock():
                return
            while True:
                advance = self.feed.advance(self._ending)
                if advance is Advance.DONE:
                    return
                if self._is_replaceable and self.feed.is_spoiled:  # at once: it must not begin what it cannot end
                    self.is_broken = True
                    return
                if advance is Advance.IDLE and self._is_draining and not self._ending and self.feed.is_up_to_date:
                    self._is_drained = True
                    self.feed.leave()
                    return
                if advance is Advance.IDLE:
                    self._pause()
        except Exception:
            log.exception("%s: its feed ended unexpectedly", self.feed.name)
            self.is_broken = True
            self.feed.leave()

    def _wait_for_lock(self) -> bool:
        """Wait for the feeder of an earlier attempt to end."""
        told = False
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self.feed.lock()
            except JournalError as error:
                if not told:
                    log.warning("%s waits: %s", self.feed.name, error)
                    told = True
                if self._is_draining and time.monotonic() > deadline:
                    return False
                self._pause()
            else:
                return True

    def _pause(self) -> None:
        self._wake.wait(POLL_SECONDS)
        self._wake.clear()


def feed_to_the_end(feeds: Sequence[Feed], ending: RunStatus | None, deadline: float) -> None:
    """Bring locked feeds up to the journal's end in this thread, trying again what fails.

    Args:
        feeds: The feeds.
        ending: Status the run has ended with; nothing = it goes on elsewhere.
        deadline: When to give up, by `time.monotonic`.
    """
    waiting = list(feeds)
    while waiting:
        for feed in list(waiting):
            while (advance := feed.advance(ending)) is Advance.MORE:
                pass
            if advance is Advance.DONE or (ending is None and feed.is_up_to_date):
                waiting.remove(feed)
        if waiting:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    for feed in feeds:
        if not feed.is_done:
            feed.leave()
