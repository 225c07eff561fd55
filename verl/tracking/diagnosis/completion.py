"""Complete what trackers lack of a run: what `verl sync` does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl.config.secrets import mask_text
from verl.errors import ConfigError, JournalError, TrackerError
from verl.journal import RunDirectory
from verl.journal.cursor import Cursor
from verl.journal.run_info import RUNNING
from verl.journal.run_listing import count_after
from verl.tracking.diagnosis.preflight import preflight, sentence
from verl.tracking.diagnosis.tracker_checkup import (
    ONLY_BY_ITS_PROGRAM,
    Condition,
    Standing,
    feeder_of,
    hint,
    is_known_by_name,
    places,
    proxy_checks,
    standing_of,
    trainer_settings_of,
)
from verl.tracking.relay.draining import drain
from verl.tracking.relay.feed_state import FeedState, state_path
from verl.tracking.table import BUILTIN, IN_TRAINING_PROCESS, check_tracker, chosen_proxies, tracker_locations

_COUNTED_BYTES = 4 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.25
_BRANCH = re.compile(rb'"branch":\s*(\d{1,6})')
_LONGEST_SILENCE_SECONDS = 1800.0
"""Longest time without news from a tracker that does not fail either: a large piece, at a slow one."""


class _NothingMovesError(Exception):
    """Nothing was delivered for too long."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a tracker is.

    Attributes:
        tracker: Its name. delivered: Records that it has. total: Records that there are.
        is_done: Whether there is nothing to wait for.
        failures: Failed tries so far. trouble: Why it failed just now, if it did.
    """

    tracker: str
    delivered: int
    total: int
    is_done: bool = False
    failures: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a tracker.

    Attributes:
        tracker: Its name. is_complete: Whether it has everything, to the end.
        sentence: In words. facts: Its ids, and where to look.
    """

    tracker: str
    is_complete: bool
    sentence: str
    facts: tuple[str, ...] = ()


class _Silence:
    """How long a tracker has taken nothing, and whether it failed in that time: a slow one does not."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._last: tuple[int, int] | None = None  # records delivered and failures then

    def is_hopeless(self, found: Progress, seconds: float) -> bool:
        """Whether to give up, or there is nothing to wait for."""
        if self._last is None or found.delivered != self._last[0]:
            self._last, self._since = (found.delivered, found.failures), time.monotonic()
        silent = time.monotonic() - self._since
        has_failed = found.failures > self._last[1]
        return found.is_done or silent > (seconds if has_failed else _LONGEST_SILENCE_SECONDS)


class Completion:
    """One run on its way to its trackers: `prepare`, `deliver`, then ask for the `outcomes`.

    Args:
        directory: The run. names: Trackers.
        is_fresh: Build each anew, in a remote run of its own.
    """

    def __init__(self, directory: RunDirectory, names: Sequence[str], *, is_fresh: bool = False) -> None:
        self._directory = directory
        self._names = list(names)
        self._is_fresh = is_fresh
        self._info = directory.info
        self._refused: dict[str, str] = {}  # tracker -> why it is not fed
        self._anew: list[str] = []
        self._trainer = trainer_settings_of(directory)
        self._proxies = chosen_proxies(self._trainer)
        self._total = count_after(directory.journal, Cursor()).lines

    @property
    def feeding(self) -> list[str]:
        """Trackers that are delivered to."""
        return [name for name in self._names if name not in self._refused]

    def prepare(self) -> list[str]:
        """Find out which trackers can be delivered to; says what is to be known before."""
        notes = []
        for name in self._names:
            if reason := self._obstacle(name):
                self._refused[name] = reason
        lacking = [name for name in self.feeding if self._is_fresh or not self._has_all(name)]
        unusable = proxy_checks(self._trainer)
        notes += [f"{name}: {sentence(unusable[name])}" for name in lacking if name in unusable]
        for found in preflight(lacking, self._proxies):
            if found.errors:
                self._refused[found.tracker] = "; ".join(map(sentence, found.errors))
            notes += [f"{found.tracker}: {sentence(check)}; it is tried all the same" for check in found.warnings]
        if self._is_fresh:
            notes += self._prepare_anew()
        return notes

    def deliver(self, watch: Callable[[Sequence[Progress]], object], seconds: float) -> None:
        """Deliver until all have everything, or nothing moves for so many seconds.

        Args:
            watch: Gets told a few times a second how far they are.
            seconds: Longest time in which nothing is delivered.
        """
        # `drain` begins all that it is given anew, or none of them.
        for names, is_fresh in ((self._anew, True), ([name for name in self.feeding if name not in self._anew], False)):
            names = [name for name in names if is_fresh or not self._has_all(name)]
            if names:
                self._drain(names, watch, seconds, is_fresh=is_fresh)

    def outcomes(self) -> list[Outcome]:
        """What became of each tracker."""
        self._info = self._directory.info
        return [self._outcome(name) for name in self._names]

    def progress(self, names: Sequence[str]) -> list[Progress]:
        """How far trackers are."""
        found = []
        for name in names:
            standing = self._standing(name, _COUNTED_BYTES)
            trouble = mask_text(standing.state.last_error) if standing.condition is Condition.FAILING else ""
            behind = min(standing.behind.lines, self._total)
            is_done = standing.condition in (Condition.COMPLETE, Condition.CURRENT)
            failures = standing.state.failures
            found.append(Progress(name, self._total - behind, self._total, is_done, failures, trouble))
        return found

    def _drain(
        self, names: list[str], watch: Callable[[Sequence[Progress]], object], seconds: float, *, is_fresh: bool
    ) -> None:
        silences = {name: _Silence() for name in names}

        due = 0.0

        def look() -> None:
            nonlocal due
            if time.monotonic() < due:
                return
            due = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            found = self.progress(names)
            watch(found)
            if all(silences[item.tracker].is_hopeless(item, seconds) for item in found):
                raise _NothingMovesError

        try:
            drain(self._directory, names, float("inf"), is_fresh=is_fresh, proxies=self._proxies, watch=look)
        except _NothingMovesError:
            pass
        except (OSError, TrackerError, ValueError) as error:  # begun to be fed, damaged or read-only, just now
            for name in names:
                if not self._standing(name).is_complete:
                    self._refused[name] = mask_text(str(error))

    def _obstacle(self, name: str) -> str | None:
        """Why nothing can be delivered to a tracker, in words."""
        if not is_known_by_name(name):
            return None if self._has_all(name) and not self._is_fresh else ONLY_BY_ITS_PROGRAM
        if feeder := feeder_of(self._directory, name):
            if self._info.status == RUNNING:
                again = "refused: end the run first" if self._is_fresh else "nothing is to be done here"
                return f"the run is being trained, and its relay feeds this tracker ({feeder}); {again}"
            return f"it is being fed just now, by {feeder}; wait for it, then try again"
        if self._is_fresh and self._info.status == RUNNING:
            return "the run is still being trained, so nothing is built anew; end it first"
        standing = self._standing(name)
        if standing.condition is Condition.DAMAGED and not self._is_fresh:
            return f"{standing.state.last_error}; or build it anew beside the old one with --fresh"
        return None

    def _prepare_anew(self) -> list[str]:
        """Note which trackers have something that is now left behind."""
        notes = []
        for name in self.feeding:
            standing = self._standing(name)
            if standing.condition is Condition.ABSENT:
                continue
            if standing.condition is Condition.DAMAGED:
                kept = _put_aside(self._directory, name)
                notes.append(f"{name}: its damaged state file is kept as {kept}")
            self._anew.append(name)
            notes.append(f"{name}: the run is built anew from the journal; what it shows already stays beside it")
        return notes

    def _has_all(self, name: str) -> bool:
        """Whether there is nothing to deliver."""
        return self._standing(name).condition is Condition.COMPLETE

    def _standing(self, name: str, most_bytes: int | None = None) -> Standing:
        return standing_of(self._directory, self._info, name, most_bytes)

    def _outcome(self, name: str) -> Outcome:
        standing = self._standing(name)
        facts = tuple(places(standing.state, self._info.trackers.get(name, {})))
        if standing.is_complete and not (self._is_fresh and name in self._refused):
            return Outcome(name, True, f"complete ({self._total:,} records, {standing.state.status})", facts)
        if name in self._refused:
            return Outcome(name, False, f"not complete: {self._refused[name]}", facts)
        state, why = standing.state, mask_text(standing.state.last_error)
        match standing.condition:
            case Condition.COMPLETE:
                last = f": {mask_text(state.skipped[-1].reason)}" if state.skipped else ""
                text = f"complete but for {state.num_skipped:,} records that it refuses{last}; the journal has them"
            case Condition.CURRENT:
                text = "has everything so far; the run goes on, so complete it once it has ended"
            case Condition.UNFINISHED:
                text = f"has all records, but not yet the end of the run{f': {why}' if why else ''}"
            case Condition.FAILING:
                advice = hint(why)
                text = (
                    f"{standing.behind} of {self._total:,} records are missing: {why}{f'; {advice}' if advice else ''}"
                )
            case _:
                log = "relay/relay.log in the run says more"
                text = f"{standing.behind} of {self._total:,} records are missing{f': {why}' if why else ''}; {log}"
        return Outcome(name, False, text, facts)


def check_names(names: Sequence[str]) -> None:
    """Make sure that trackers can be named for `verl sync`, installed or not.

    Raises:
        ConfigError: One is drawn by the training process only.
        TrackerError: One is unknown.
    """
    for name in names:
        if name in IN_TRAINING_PROCESS:
            others = ", ".join(other for other in tracker_locations() if other not in IN_TRAINING_PROCESS)
            raise ConfigError(f"{name!r} is drawn while training and keeps nothing; trackers to complete are {others}")
        if name not in BUILTIN:
            check_tracker(name)


def _put_aside(directory: RunDirectory, name: str) -> str:
    """Replaces a damaged state file by one that is as good as new, but has its branch."""
    path = state_path(directory, name)
    try:
        branches = [int(found) for found in _BRANCH.findall(path.read_bytes())]
        kept = path.with_suffix(".damaged")
        path.replace(kept)
        FeedState(name, branch=max(branches, default=0)).save(path)
    except OSError as error:
        raise JournalError(f"{path} is damaged, and cannot be moved away: {error.strerror}.") from None
    return kept.name
