"""How long and how often a tracker that fails is tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of trying again.

    Attributes:
        first_seconds: Wait after the first failure; it doubles with each further one.
        longest_seconds: Longest wait.
        tries: Failures of one and the same record after which it is left out, if the tracker takes others.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    tries: int = 5


class Backoff:
    """When the next try is due."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._next_seconds = patience.first_seconds
        self._due = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early."""
        return time.monotonic() < self._due

    def failed(self) -> None:
        """Wait, longer each time."""
        self._due = time.monotonic() + self._next_seconds
        self._next_seconds = min(2 * self._next_seconds, self._patience.longest_seconds)

    def succeeded(self) -> None:
        """The next failure is a first one again."""
        self._next_seconds = self._patience.first_seconds

    def hurry(self) -> None:
        """Try at once; may be called from any thread."""
        self.succeeded()
        self._due = 0.0
