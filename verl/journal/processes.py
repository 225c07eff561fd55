"""Which process it was, and whether it still lives."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import psutil

_START_TOLERANCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process on a host.

    Attributes:
        pid: Process id. host: Name of the machine (or container).
        since: Unix time at which it was known to run; a process that was created later than this
            has merely got the same number again.
    """

    pid: int
    host: str
    since: float

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The process that asks."""
        return cls(os.getpid(), socket.gethostname(), time.time())

    def is_dead(self) -> bool:
        """Whether it has surely ended; a process on another host counts as alive."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            return process.create_time() > self.since + _START_TOLERANCE_SECONDS
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def is_alive_here(self) -> bool:
        """Whether it surely runs on this very host."""
        return self.host == socket.gethostname() and not self.is_dead()

    def is_current(self) -> bool:
        """Whether it is the process that asks."""
        return self.pid == os.getpid() and self.is_alive_here()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"
