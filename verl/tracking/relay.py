"""The relay: one process per run that feeds every tracker from the journal.

    python -m verl.tracking.relay RUN_DIRECTORY [--attempt N] [--total-steps N] [--tracker NAME ...] [--parent PID]

It lives in a session of its own (Ctrl-C in the terminal does not reach it), ends when it has delivered the `finish`
record, and when the training process dies without one it delivers what is there, marks the run as crashed
everywhere, and ends too. What it says is in `relay/relay.log`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from verl.errors import VerlError
from verl.journal import JournalReader, Kind, RunDirectory
from verl.tracking.feed import Feed, FeedSource
from verl.tracking.feed_worker import FeedWorker
from verl.tracking.table import IN_TRAINING_PROCESS

log = logging.getLogger("verl.tracking")

DRAIN_SECONDS = 600.0
"""How long it goes on delivering after training has ended or died."""
TERMINATED_SECONDS = 20.0
"""How long after a SIGTERM, which a cluster sends to all processes of a job before it kills them."""
_WATCH_SECONDS = 0.2


class Relay:
    """All feeds of a run, and the watch over the training process.

    Args:
        source: The run.
        trackers: Names.
        parent: Process id of the training process.
    """

    def __init__(self, source: FeedSource, trackers: Sequence[str], parent: int) -> None:
        self._source = source
        self._parent = parent
        self._workers = [FeedWorker(Feed.by_name(name, source)) for name in trackers]
        self._terminated = threading.Event()

    def terminate(self) -> None:
        """Finish soon, whatever is left."""
        self._terminated.set()

    def run(self) -> bool:
        """Feed until the end, or the deadline after it; True only if every tracker got everything."""
        for worker in self._workers:
            worker.start()
        deadline = float("inf")
        orphaned = False
        while not self._join(_WATCH_SECONDS) and time.monotonic() < deadline:
            if not orphaned and os.getppid() != self._parent:
                orphaned = True
                deadline = min(deadline, time.monotonic() + DRAIN_SECONDS)
                log.info("the training process is gone; delivering what is left")
                for worker in self._workers:
                    worker.end("crashed")
            if self._terminated.is_set():
                deadline = min(deadline, time.monotonic() + TERMINATED_SECONDS)
                self._terminated.clear()
        if orphaned or os.getppid() != self._parent:
            self._settle()
        for worker in self._workers:
            if not worker.is_complete:
                log.error("%s does not have everything: %s", worker.feed.name, worker.feed.state.last_error)
        return all(worker.is_complete for worker in self._workers)

    def _join(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(worker.join(max(0.0, deadline - time.monotonic())) for worker in self._workers)

    def _settle(self) -> None:
        """Write the true end of an attempt whose process could not."""
        directory, attempt = self._source.directory, self._source.attempt
        ends = [record for record in JournalReader(directory).records({Kind.FINISH}) if record.attempt == attempt]
        status = ends[-1].fields["status"] if ends else "crashed"
        if directory.info.attempt(attempt).status in ("running", "crashed"):
            directory.finish_attempt(status, attempt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the relay; the exit status is 0 if everything was delivered."""
    parser = argparse.ArgumentParser(prog="python -m verl.tracking.relay", description="Feed a run's trackers.")
    parser.add_argument("run_directory")
    parser.add_argument("--attempt", type=int, help="attempt to feed (default: the last)")
    parser.add_argument("--total-steps", type=int, help="steps of the run (default: as recorded)")
    parser.add_argument("--tracker", action="append", dest="trackers", help="tracker to feed (default: as recorded)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="training process to watch (default: parent)")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        directory = RunDirectory.open(given.run_directory)
        source, trackers = _resolved(directory, given)
        relay = Relay(source, trackers, given.parent)
    except VerlError as error:
        log.error("%s", error)
        return error.exit_code
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: relay.terminate())
    log.info("attempt %d: feeding %s", source.attempt, ", ".join(trackers))
    is_complete = relay.run()
    log.info("attempt %d: %s", source.attempt, "all delivered" if is_complete else "ended before all was delivered")
    return 0 if is_complete else 1


def _resolved(directory: RunDirectory, given: argparse.Namespace) -> tuple[FeedSource, list[str]]:
    """What the command line leaves open is in the journal's last `run` record."""
    attempt = given.attempt or directory.info.last_attempt
    if given.trackers is not None:
        return FeedSource(directory, attempt, given.total_steps), given.trackers
    opened = [record for record in JournalReader(directory).records({Kind.RUN}) if record.attempt == attempt]
    fields = opened[-1].fields if opened else {"trackers": [], "total_steps": None}
    total_steps = given.total_steps or fields["total_steps"]
    trackers = [name for name in fields["trackers"] if name not in IN_TRAINING_PROCESS]
    return FeedSource(directory, attempt, total_steps), trackers


if __name__ == "__main__":
    sys.exit(main())
