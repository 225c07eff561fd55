"""Sample the machine from a thread, and give each logged step one value per `system/...` metric.

sampler = SystemSampler(run_directory, interval=10.0, tell=tracking.note)
sampler.take(step)   # {"system/cpu_percent": 87.5, ...}: the samples since the last step, reduced
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from verl.tracking.catalogue import lookup
from verl.tracking.spec import Reduction
from verl.tracking.system.readings import Reader, readers

log = logging.getLogger("verl.tracking")

_FIRST_SAMPLE_SECONDS = 1.0

_Result = TypeVar("_Result")
PartsOf = Callable[[Path], list[tuple[str, Callable[[], Reader | None]]]]


class SystemSampler:
    """A thread that reads the machine every few seconds. Nothing it meets reaches the training.

    Args:
        run_directory: Whose disk is looked at.
        interval: Seconds between two samples; the first one comes after a second.
        tell: Takes a sentence about a part of the machine that cannot be read.
        parts_of: Where the parts come from.
    """

    def __init__(
        self, run_directory: Path, interval: float, tell: Callable[[str], None], parts_of: PartsOf = readers
    ) -> None:
        self._run_directory = run_directory
        self._interval = interval
        self._tell = tell
        self._parts_of = parts_of
        self._parts: dict[str, Reader] = {}
        self._lock = threading.Lock()
        self._window: dict[str, _Reduced] = {}
        self._ready: dict[str, float] = {}  # the window, reduced by the thread, as `take` has no time for it
        self._taken_at: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="verl-system-metrics", daemon=True)
        self._thread.start()

    def take(self, step: int) -> dict[str, float]:
        """The samples since the last step, each metric reduced as the catalogue says; empty if there were none.

        A step gets them once: what is logged again for it, or for an earlier one, has none. Costs some microseconds.
        """
        if not self._ready or (self._taken_at is not None and step <= self._taken_at):
            return {}
        self._taken_at = step
        with self._lock:
            taken, self._ready, self._window = self._ready, {}, {}
        return taken

    def rewind(self, to_step: int) -> None:
        """Training goes on from an earlier step."""
        self._taken_at = to_step

    def stop(self) -> None:
        """End the thread; one that hangs, such as on a disk that is away, is left alone."""
        self._stop.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        for name, begin in self._parts_of(self._run_directory):
            reader = self._guarded(name, begin)
            if reader is not None:
                self._parts[name] = reader
        wait = min(_FIRST_SAMPLE_SECONDS, self._interval)
        while not self._stop.wait(wait):
            samples = [self._guarded(name, reader) for name, reader in list(self._parts.items())]
            self._add({key: value for sample in samples if sample for key, value in sample.items()})
            wait = self._interval

    def _guarded(self, name: str, read: Callable[[], _Result]) -> _Result | None:
        try:
            return read()
        except Exception as error:  # whatever a driver or a container comes up with
            self._parts.pop(name, None)
            log.warning("no system metrics of the %s any more", name, exc_info=error)
            self._say(f"system metrics: the {name} cannot be read ({type(error).__name__}: {error}); the others go on")
            return None

    def _say(self, sentence: str) -> None:
        try:
            self._tell(sentence)
        except OSError as error:  # a full disk, or the run has just ended
            log.warning("cannot note this: %s", error)

    def _add(self, sample: dict[str, float]) -> None:
        with self._lock:
            for key, value in sample.items():
                reduced = self._window.get(key)
                if reduced is None:
                    reduced = self._window[key] = _Reduced(key)
                reduced.add(value)
            self._ready = {key: reduced.value for key, reduced in self._window.items()}


class _Reduced:
    """The samples of one metric between two steps."""

    __slots__ = ("_count", "_reduction", "_value")

    def __init__(self, key: str) -> None:
        spec = lookup(key)
        self._reduction = spec.reduction if spec else Reduction.MEAN
        self._count = 0
        self._value = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        if self._reduction is Reduction.MEAN:
            self._value += value
        elif self._count == 1:
            self._value = value
        else:
            self._value = (max if self._reduction is Reduction.MAX else min)(self._value, value)

    @property
    def value(self) -> float:
        return self._value / self._count if self._reduction is Reduction.MEAN else self._value
