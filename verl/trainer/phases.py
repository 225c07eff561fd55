"""Wall-clock time of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Sums the seconds of each named phase of one step.

    Phases do not nest: what lies outside all of them is `other`, so the parts add up to `step`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time inside the `with` block to phase `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def finish(self) -> dict[str, float]:
        """Returns seconds per phase, with `step` (all of it) and `other` (outside the phases)."""
        step = time.perf_counter() - self._started
        return {**self.seconds, "other": max(step - sum(self.seconds.values()), 0.0), "step": step}
