"""The relay: one process per run that has every tracker fed from the journal, each by a process of its own.

    python -m verl.tracking.relay RUN_DIRECTORY [--attempt N] [--total-steps N] [--tracker NAME ...] [--parent PID]

It lives in a session of its own (Ctrl-C in the terminal does not reach it), ends when it has delivered the `finish`
record, and when the training process dies without one it delivers what is there, marks the run as crashed
everywhere, and ends too. With `--drain` it delivers what there is of a run that nobody feeds. What it says is in
`relay/relay.log`.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from verl.config.secrets import mask_text
from verl.errors import VerlError
from verl.journal import JournalReader, Kind, RunDirectory
from verl.tracking.logger import RunStatus
from verl.tracking.relay.feed import FeedSource
from verl.tracking.relay.feeder import COMPLETE, Feeder
from verl.tracking.table import IN_TRAINING_PROCESS, proxies_of_environment

log = logging.getLogger("verl.tracking")

DRAIN_SECONDS = 600.0
"""How long it goes on delivering after training has ended or died, or by hand."""
TERMINATED_SECONDS = 20.0
"""How long after a SIGTERM, which a cluster sends to all processes of a job before it kills them."""
_WATCH_SECONDS = 0.2
_ENDINGS: tuple[RunStatus, ...] = ("finished", "failed", "killed", "crashed")


class Relay:
    """The feeders of a run, and the watch over them and the training process.

    Args:
        source: The run.
        trackers: Names.
        parent: Process id of the training process.
    """

    def __init__(self, source: FeedSource, trackers: Sequence[str], parent: int) -> None:
        self._source = source
        self._parent = parent
        self._feeders = [Feeder(name, source) for name in trackers]
        self._deadline = float("inf")
        self._grace = TERMINATED_SECONDS
        self._is_terminated = False

    def terminate(self) -> None:
        """Finish soon, whatever is left; for a signal handler."""
        self._is_terminated = True

    def drain(self) -> bool:
        """Deliver what there is; True only if every tracker got everything."""
        status = self._source.directory.info.status
        ending: RunStatus | None = next((known for known in _ENDINGS if known == status), None)
        self._grace = 0.0
        self._feeders = [Feeder(f.name, self._source, ending=ending, is_draining=True) for f in self._feeders]
        self._work(self._give_up)
        return self._is_complete()

    def run(self) -> bool:
        """Feed until the end, or the deadline after it; True only if every tracker got everything."""
        self._work(self._end_crashed)
        if self._is_orphan:
            self._settle()
        return self._is_complete()

    @property
    def _is_orphan(self) -> bool:
        return os.getppid() != self._parent

    def _work(self, orphaned: Callable[[], None]) -> None:
        for feeder in self._feeders:
            feeder.start()
        told = False
        while not self._are_done() and time.monotonic() < self._deadline:
            _sleep_until_a_signal(_WATCH_SECONDS)
            if not told and self._is_orphan:
                told = True
                orphaned()
            if self._is_terminated:
                self._is_terminated = False
                self._deadline = min(self._deadline, time.monotonic() + self._grace)
        for feeder in self._feeders:
            feeder.kill()

    def _end_crashed(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + DRAIN_SECONDS)
        log.info("the training process is gone; delivering what is left")
        for feeder in self._feeders:
            feeder.end_crashed()

    def _give_up(self) -> None:
        self._deadline = 0.0

    def _are_done(self) -> bool:
        for feeder in self._feeders:
            feeder.check()
        return all(feeder.code is not None for feeder in self._feeders)

    def _is_complete(self) -> bool:
        for feeder in self._feeders:
            if feeder.code != COMPLETE:
                log.error("%s does not have everything, see relay/%s.json", feeder.name, feeder.name)
        return all(feeder.code == COMPLETE for feeder in self._feeders)

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
    parser.add_argument("--drain", action="store_true", help="deliver what there is, then end")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="training process to watch (default: parent)")
    given = parser.parse_args(arguments)
    _log_masked()
    try:
        directory = RunDirectory.open(given.run_directory)
        source, trackers = _resolved(directory, given)
        relay = Relay(source, trackers, given.parent)
    except VerlError as error:
        log.error("%s", error)
        return error.exit_code
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: relay.terminate())
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake it
    log.info("attempt %d: feeding %s", source.attempt, ", ".join(trackers))
    is_complete = relay.drain() if given.drain else relay.run()
    log.info("attempt %d: %s", source.attempt, "all delivered" if is_complete else "ended before all was delivered")
    return 0 if is_complete else 1


class _MaskedFormatter(logging.Formatter):
    """Tracebacks, too: what a server answers may repeat the key or address that it was asked with."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


def _log_masked() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MaskedFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _sleep_until_a_signal(seconds: float) -> None:
    """Sleep, but not through a signal: a feeder has ended, or the relay is to end."""
    # An Event would not do: its lock may be held just when a handler runs that sets it.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        select.select([reader], [], [], seconds)
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _resolved(directory: RunDirectory, given: argparse.Namespace) -> tuple[FeedSource, list[str]]:
    """What the command line leaves open is in the journal's last `run` record."""
    attempt = given.attempt or directory.info.last_attempt
    if given.trackers is not None:
        return FeedSource(directory, attempt, given.total_steps, proxies_of_environment()), given.trackers
    opened = [record for record in JournalReader(directory).records({Kind.RUN}) if record.attempt == attempt]
    fields = opened[-1].fields if opened else {"trackers": [], "total_steps": None}
    total_steps = given.total_steps or fields["total_steps"]
    trackers = [name for name in fields["trackers"] if name not in IN_TRAINING_PROCESS]
    return FeedSource(directory, attempt, total_steps, proxies_of_environment()), trackers
