"""Start the relay process, and start it again if it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from verl.tracking.feed import FeedSource

MOST_RESTARTS = 3
CHECK_SECONDS = 5.0


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
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> bool:
        """Start it again if a signal (such as the kernel's when memory is short) ended it.

        Returns:
            Whether it had to be started again.
        """
        code = self._process.poll()
        if code is None or code >= 0 or self._restarts >= MOST_RESTARTS:
            return False
        self._restarts += 1
        self._process = self._start()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until it has delivered everything; False if it has not by then."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                code = self._process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
            if not self.check():
                return code == 0

    def _start(self) -> subprocess.Popen[bytes]:
        directory = self._source.directory
        directory.relay.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "verl.tracking.relay", str(directory.path)]
        command += ["--attempt", str(self._source.attempt), "--parent", str(os.getpid())]
        if self._source.total_steps is not None:
            command += ["--total-steps", str(self._source.total_steps)]
        for tracker in self._trackers:
            command += ["--tracker", tracker]
        # It must find this very package, and trackers wherever the user's program finds them.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with directory.relay_log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
