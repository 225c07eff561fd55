"""One process per tracker: what hangs, leaks or dies in a tracker's package is its own trouble, and is begun again.

The relay forks itself before it has a thread or a package of a tracker in it, so all feeders share the memory of
what they have in common.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import time

from verl.tracking.logger import RunStatus
from verl.tracking.relay.feed import Feed, FeedSource
from verl.tracking.relay.feed_worker import FeedWorker
from verl.tracking.relay.patience import Backoff, Patience

log = logging.getLogger("verl.tracking")

COMPLETE, INCOMPLETE, AGAIN = 0, 1, 70
_WATCH_SECONDS = 0.2
_PATIENCE = Patience()


class Feeder:
    """A tracker's process, seen from the relay.

    Args:
        name: Tracker.
        source: The run.
        ending: Status the run has ended with; nothing = it is being written.
        is_draining: End as soon as the tracker has everything that there is.

    Attributes:
        code: How it ended: `COMPLETE`, `INCOMPLETE`, or nothing as long as it is at it.
    """

    def __init__(
        self, name: str, source: FeedSource, *, ending: RunStatus | None = None, is_draining: bool = False
    ) -> None:
        self.name = name
        self.code: int | None = None
        self._source = source
        self._ending: RunStatus | None = ending
        self._is_draining = is_draining
        self._backoff = Backoff(_PATIENCE)
        self._pid = 0
        self._started = 0.0

    def start(self) -> None:
        """Begin."""
        relay = os.getpid()
        gc.freeze()  # a collection in the child would write to, and so copy, all that it shares
        pid = os.fork()
        if pid == 0:
            code = AGAIN
            try:
                os.setpgid(0, 0)
                code = _feed(self.name, self._source, relay, self._ending, self._is_draining)
            except BaseException:
                log.exception("%s: its feeder ended unexpectedly", self.name)
            finally:
                os._exit(code)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # here, too: whoever comes first
        self._pid = pid
        self._started = time.monotonic()

    def check(self) -> None:
        """See how it fares, and start it again, after a while, if it did not end by itself."""
        if self.code is not None:
            return
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                return
            _kill_group(self._pid)  # helpers that outlived it
            self._pid = 0
            code = os.waitstatus_to_exitcode(status)
            if code in (COMPLETE, INCOMPLETE):
                self.code = code
                return
            if time.monotonic() - self._started > _PATIENCE.longest_seconds:
                self._backoff.succeeded()
            self._backoff.failed()
            log.warning("%s: its process ended (%d) before its work was done; it is begun again", self.name, code)
        if not self._backoff.is_waiting:
            self.start()

    def end_crashed(self) -> None:
        """The training process died: deliver what is there, then show the run as crashed."""
        self._ending = "crashed"
        self._backoff.hurry()
        if self._pid:
            os.kill(self._pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End it and everything it started, now."""
        if self._pid:
            _kill_group(self._pid)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _feed(name: str, source: FeedSource, relay: int, ending: RunStatus | None, is_draining: bool) -> int:
    """Life of the process: a thread feeds, this one watches over it."""
    crashed: list[int] = []  # signals; an Event's lock may be held just when the handler runs
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a cluster sends it to everybody; the relay decides
    signal.signal(signal.SIGUSR1, lambda number, _: crashed.append(number))
    feed = Feed.by_name(name, source)
    worker = FeedWorker(feed, ending=ending, is_draining=is_draining, is_replaceable=True)
    worker.start()
    while not worker.join(_WATCH_SECONDS):
        if os.getppid() != relay:
            log.warning("%s: the relay is gone; whoever comes next goes on from here", name)
            _kill_group(os.getpid())
        if crashed:
            crashed.clear()
            worker.end("crashed")
        if reason := feed.overdue:
            log.error("%s: %s; its process is begun again", name, reason)
            feed.give_up(reason)
            _kill_group(os.getpid())
    if worker.is_broken:
        return AGAIN
    return COMPLETE if worker.is_complete else INCOMPLETE


def _kill_group(pid: int) -> None:
    """Also the helpers that a tracker's package started: they would go on with what is about to be sent again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
