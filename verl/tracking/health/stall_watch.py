"""Notice that no step ends for far longer than usual; from a thread, as the training thread is stuck then."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl.config.schema import StalledStepConfig
from verl.errors import JournalError
from verl.tracking.health.rule import Symptom, median

log = logging.getLogger("verl.tracking")

_FEWEST_STEPS = 3
_MOST_STEPS = 100
_SLOWEST_LOOK_SECONDS = 5.0
_LONGEST_EARLIER = 1.5


class StallWatch(Symptom):
    """A thread that looks how long the present step takes.

    A step is stalled when it takes longer than `minimum_seconds`, `factor` times the median of the last hundred steps,
    and one and a half times the longest of them (so that a long validation is told once at most). Before three steps
    have ended nothing is told: models load, validation runs. Nor is anything from the last step on: what follows it is
    no step.

    Args:
        config: Thresholds.
        stalled: Called by the thread, once per stall, with the numbers in a sentence.
        resumed: Called by the training thread, when the step ends after all, with a sentence.
        total_steps: The last step, if known.
        now: Gives the time in seconds.
        wait: Waits for the event, so many seconds at most, and says whether it was set.
    """

    name, title, level = "stalled_step", "step is stalled", "error"
    meaning = "The training thread waits: for a file system, a reward function or server, another rank, or a lock."
    advice = (
        "Look where it stands (`py-spy dump --pid PID`); `timing/*` of the steps before tells which phases are usual."
    )

    def __init__(
        self,
        config: StalledStepConfig,
        stalled: Callable[[str], None],
        resumed: Callable[[str], None],
        total_steps: int | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._config = config
        self._stalled, self._resumed = stalled, resumed
        self._total_steps = total_steps
        self._now, self._wait = now, wait
        self._lock = threading.Lock()
        self._step: int | None = None
        self._since = 0.0
        self._pauses = 0
        self._paused_at = 0.0
        self._has_begun = False
        self._durations: deque[float] = deque(maxlen=_MOST_STEPS)
        self._is_told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="verl-stall-watch", daemon=True)
        self._thread.start()

    def beat(self, step: int) -> None:
        """Training is at `step`; a step that is another than the last one given says that the last one has ended."""
        if step == self._step:
            return
        with self._lock:
            self._leave_out_the_pause()
            duration, was_told = self._now() - self._since, self._is_told
            if self._has_begun:
                self._durations.append(duration)
            self._has_begun = self._step is not None  # what lies before the second step given may be no step
            self._step, self._since, self._is_told = step, self._now(), False
        if was_told:
            self._resumed(f"Step {step}: training goes on, after {duration:.3g} s without a step that ended.")

    @property
    def is_at_the_end(self) -> bool:
        """Whether the last step has been given."""
        return self._total_steps is not None and self._step is not None and self._step >= self._total_steps

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is done within takes as long as it takes, and counts to no step."""
        with self._lock:
            if not self._pauses:
                self._paused_at = self._now()
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._leave_out_the_pause()
                self._pauses -= 1

    def _leave_out_the_pause(self) -> None:
        if self._pauses:
            now = self._now()
            self._since += now - self._paused_at
            self._paused_at = now

    def stop(self) -> None:
        """End it; does not wait for an alert that is just being given for long."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _work(self) -> None:
        wait = self._interval()
        while True:
            asleep = self._now()
            if self._wait(self._stop, wait):
                return
            late = self._now() - asleep - wait
            try:
                wait = self._look(late if late > _SLOWEST_LOOK_SECONDS else 0.0)
            except (JournalError, OSError) as error:  # a full disk: the training thread says so, too
                log.warning("cannot tell that a step is stalled: %s", error)
                wait = self._interval()

    def _look(self, suspended: float) -> float:
        """Tell if the step is stalled; returns the seconds until the next look."""
        with self._lock:
            if self._pauses:
                return self._interval()
            self._since += suspended  # a process that was stopped by a signal is not stalled
            if self._is_told or len(self._durations) < _FEWEST_STEPS or self._step is None or self.is_at_the_end:
                return self._interval()
            usual, longest = median(self._durations), max(self._durations)
            limit = max(self._config.factor * usual, self._config.minimum_seconds, _LONGEST_EARLIER * longest)
            taken = self._now() - self._since
            if taken <= limit:
                return min(self._interval(), limit - taken + 0.01)
            self._is_told, step = True, self._step
        self._stalled(
            f"Step {step}: no step has ended for {taken:.3g} s (limit {limit:.3g} s; median of the last "
            f"{len(self._durations)} steps: {usual:.3g} s)",
        )
        return self._interval()

    def _interval(self) -> float:
        return min(_SLOWEST_LOOK_SECONDS, max(self._config.minimum_seconds / 4, 0.02))
