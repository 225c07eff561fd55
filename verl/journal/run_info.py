"""What `run.json` holds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from verl.errors import JournalError
from verl.journal.processes import ProcessIdentity

RUNNING = "running"
CRASHED = "crashed"
STATUSES = ("running", "finished", "failed", "killed", "crashed")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the run.

    Attributes:
        number: From 1. started, ended: Unix seconds; `ended` is nothing while it runs or if it crashed.
        pid, host: The training process of rank 0.
        status: running, finished, failed, killed or crashed.
        resumed_from: Checkpoint that it went on from, nothing for a start from scratch.
    """

    number: int
    started: float
    pid: int
    host: str
    ended: float | None = None
    status: str = RUNNING
    resumed_from: str | None = None

    def checked(self) -> Self:
        """The attempt with the status `crashed` if it says `running` but its process is gone."""
        if self.status == RUNNING and ProcessIdentity(self.pid, self.host, self.started).is_dead():
            return dataclasses.replace(self, status=CRASHED)
        return self


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Who a run is: the content of `run.json`.

    Attributes:
        run_id: Eight letters and digits, never changed.
        created: Unix seconds.
        attempts: All starts, oldest first.
        trackers: Tracker name -> its own identifiers, such as `{"mlflow": {"run_id": "..."}}`.
    """

    run_id: str
    project: str
    experiment: str
    created: float
    attempts: tuple[Attempt, ...] = ()
    trackers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Status of the last attempt; `created` if there was none."""
        return self.attempts[-1].status if self.attempts else "created"

    @property
    def last_attempt(self) -> int:
        """Number of the last attempt; 0 if there was none."""
        return self.attempts[-1].number if self.attempts else 0

    def attempt(self, number: int) -> Attempt:
        """The attempt of this number, which need not be at this place of the list.

        Raises:
            JournalError: There is no such attempt.
        """
        for attempt in self.attempts:
            if attempt.number == number:
                return attempt
        numbers = [attempt.number for attempt in self.attempts]
        raise JournalError(f"The run {self.run_id} has no attempt {number}; it has {numbers or 'none'}.")

    def to_json(self) -> bytes:
        raw = {
            "run_id": self.run_id,
            "project": self.project,
            "experiment": self.experiment,
            "created": self.created,
            "status": self.status,
            "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts],
            "trackers": self.trackers,
        }
        return orjson.dumps(raw, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> Self:
        """Run of the content of `run.json`, with attempts of dead processes as `crashed`.

        Raises:
            JournalError: The content is damaged.
        """
        names = {field.name for field in dataclasses.fields(Attempt)}
        try:
            raw = orjson.loads(content)
            attempts = tuple(
                Attempt(**{name: value for name, value in item.items() if name in names}).checked()
                for item in raw["attempts"]
            )
            return cls(
                run_id=str(raw["run_id"]),
                project=str(raw["project"]),
                experiment=str(raw["experiment"]),
                created=float(raw["created"]),
                attempts=attempts,
                trackers={str(name): dict(ids) for name, ids in raw["trackers"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{path} is damaged ({type(error).__name__}: {error}). Restore it from a backup, or move it away and "
                "start anew: the journal beside it stays readable."
            ) from None
