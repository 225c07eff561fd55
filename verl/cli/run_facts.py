"""What `verl runs` says of a run, gathered without reading its journal as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from verl.config.secrets import mask_text
from verl.errors import JournalError
from verl.journal import RunDirectory, RunInfo
from verl.journal.run_info import RUNNING
from verl.journal.run_listing import latest_run_record, latest_step, latest_time, size_of
from verl.tracking.diagnosis.tracker_checkup import Condition, Standing, all_trackers_of, standing_of

DAMAGED = "damaged"
_COUNTED_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True)
class TrackerFacts:
    """What a tracker has of a run.

    Attributes:
        name: Tracker. condition: As in `Condition`. behind: Records that it lacks, estimated if there are many.
        in_short: In a few words. error: Why it failed the last time.
    """

    name: str
    condition: str
    behind: int
    in_short: str
    error: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run in the list.

    Attributes:
        name: Its folder, seen from the folder that is listed. path: The same, absolute.
        status: That of `run.json`, or "damaged". attempts: How many.
        step: Of its newest metrics. total_steps: If known.
        started: First start, Unix seconds. seconds: Time spent training, over all attempts.
        size: Bytes of the whole run directory.
        trackers: What each has. problems: What is wrong, in sentences.
    """

    name: str
    path: str
    run_id: str = ""
    project: str = ""
    experiment: str = ""
    status: str = DAMAGED
    attempts: int = 0
    step: int | None = None
    total_steps: int | None = None
    started: float | None = None
    seconds: float | None = None
    size: int = 0
    trackers: list[TrackerFacts] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def trackers_in_short(self, longest_reason: int) -> str:
        """All trackers in one line; nothing to be said about any = "ok"."""
        if self.status == DAMAGED:
            return "; ".join(self.problems)[:longest_reason] if longest_reason else "-"
        if not self.trackers:
            return "none"
        said = [f"{tracker.name} {_shortened(tracker, longest_reason)}" for tracker in self.trackers if _lacks(tracker)]
        return ", ".join(said) or "ok"


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Runs by the time of their last start, the newest first."""

    def started(path: Path) -> float:
        try:
            info = RunInfo.from_json((path / "run.json").read_bytes(), path)
            return info.attempts[-1].started if info.attempts else info.created
        except OSError:  # or damaged
            return path.lstat().st_mtime

    return sorted(paths, key=lambda path: (-started(path), path))


def facts_of(path: Path, folder: Path) -> RunFacts:
    """The facts of the run at a path; what is wrong with it is said in them."""
    name = path.name if path == folder else str(path.relative_to(folder))
    absolute = str(path.absolute())
    try:
        directory = RunDirectory.open(path)
        return _facts(directory, directory.info, name)
    except (JournalError, OSError) as error:
        return RunFacts(name, absolute, size=size_of(path), problems=[mask_text(str(error))])


def _facts(directory: RunDirectory, info: RunInfo, name: str) -> RunFacts:
    opened = latest_run_record(directory.journal)
    total_steps = opened.fields.get("total_steps") if opened else None
    standings = [standing_of(directory, info, tracker, _COUNTED_BYTES) for tracker in all_trackers_of(directory)]
    return RunFacts(
        name=name,
        path=str(directory.path),
        run_id=info.run_id,
        project=info.project,
        experiment=info.experiment,
        status=info.status,
        attempts=len(info.attempts),
        step=latest_step(directory.journal),
        total_steps=total_steps if isinstance(total_steps, int) else None,
        started=info.attempts[0].started if info.attempts else info.created,
        seconds=_seconds(directory, info),
        size=size_of(directory.path),
        trackers=[_tracker_facts(standing) for standing in standings],
        problems=[
            f"{standing.tracker}: {mask_text(standing.state.last_error)}"
            for standing in standings
            if standing.condition in (Condition.FAILING, Condition.DAMAGED)
        ],
    )


def _tracker_facts(standing: Standing) -> TrackerFacts:
    is_wrong = standing.condition in (Condition.FAILING, Condition.DAMAGED)
    error = mask_text(standing.state.last_error) if is_wrong else ""
    return TrackerFacts(standing.tracker, standing.condition, standing.behind.lines, standing.in_short, error)


def _seconds(directory: RunDirectory, info: RunInfo) -> float | None:
    """Time spent in the attempts; one that crashed ends with its last record."""
    if not info.attempts:
        return None
    total = 0.0
    for attempt in info.attempts:
        if attempt.ended is not None:
            end = attempt.ended
        elif attempt.status == RUNNING:
            end = time.time()
        elif attempt.number == info.last_attempt:
            end = latest_time(directory.journal) or attempt.started
        else:  # its last record is somewhere in the middle of the journal
            end = attempt.started
        total += max(0.0, end - attempt.started)
    return total


def _lacks(tracker: TrackerFacts) -> bool:
    return tracker.in_short != "ok"


def _shortened(tracker: TrackerFacts, longest_reason: int) -> str:
    if not longest_reason and tracker.error:
        return "failing" if tracker.condition == Condition.FAILING else tracker.in_short
    return tracker.in_short[: longest_reason or None]
