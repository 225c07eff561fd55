"""Start the relay process, and start it again if it died."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from verl.tracking.relay.feed import FeedSource
from verl.tracking.table import BUILTIN

MOST_RESTARTS = 3
_THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class RelayProcess:
    """The relay of this training process.

    Args:
        source: The run.
        trackers: Names of the trackers that it feeds.
    """

    def __init__(self, source: FeedSource, trackers: list[str]) -> None:
        self._source = source
        self._trackers = trackers
        self._restarts = 0
        self._is_given_up = False
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> str | None:
        """Start it again if it ended before the run did (such as by the kernel when memory is short).

        Returns:
            What happened, in words; nothing if all is well or it was said before.
        """
        code = self._process.poll()
        if code is None or self._is_given_up:
            return None
        ended = f"the relay ended {_in_words(code)}, see relay/relay.log"
        if self._restarts >= MOST_RESTARTS:
            self._is_given_up = True
            return f"{ended}; trackers get nothing more from this run, the journal keeps everything"
        self._restarts += 1
        self._process = self._start()
        return f"{ended}; it was started again"

    def wait(self, seconds: float) -> str | None:
        """Wait until it has delivered everything, and start it again if a signal ended it.

        Returns:
            What is wrong, in words, if it has not delivered everything by then.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                code = self._process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.returncode = 0  # it outlives this process on purpose, so nobody is to miss it
                return f"the relay (process {self.pid}) is still delivering; see relay/relay.log"
            if code == 0:
                return None
            if code > 0 or self._restarts >= MOST_RESTARTS:
                return f"the relay ended {_in_words(code)}: not every tracker has everything; see relay/relay.log"
            self._restarts += 1
            self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return start_relay(self._source, self._trackers)


def start_relay(source: FeedSource, trackers: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
    """Start a relay as a child of this process.

    Args:
        source: The run.
        trackers: Names.
        options: Further options of its command line.
    """
    directory = source.directory
    directory.relay.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "verl.tracking.relay", str(directory.path), *options]
    command += ["--attempt", str(source.attempt), "--parent", str(os.getpid())]
    if source.total_steps is not None:
        command += ["--total-steps", str(source.total_steps)]
    for tracker in trackers:
        command += ["--tracker", tracker]
    # It must find this very package, and trackers where the user's program does ("" is the working folder).
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    environment |= dict.fromkeys(
        _THREAD_COUNTS, "1"
    )  # threads of numpy would not survive its forks, and it has no use for them
    for name, proxy in source.proxies.items():  # not on the command line, which all users of a machine can see
        if variable := BUILTIN[name].proxy_variable:
            environment[variable] = proxy
    with directory.relay_log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )


def _in_words(code: int) -> str:
    return f"with code {code}" if code >= 0 else f"by signal {-code}"
