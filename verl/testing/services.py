"""What every tracker under test offers: a real service to log to, faults to inject, and a way to read back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Fault = Literal["down", "hang"] | int
"""Server gone, connection taken but never answered, or an HTTP status (401, 429, 503) for every request."""


@dataclass(slots=True)
class Shown:
    """What a tracker shows of a run, read back with the tracker's own means; names are the journal's.

    Attributes:
        points: Metrics by key: (step, value) in the order in which the tracker gives them.
        config: The configuration, flat with dotted keys.
        texts: Tag -> step -> text.
        histograms: Tag -> step -> number of values.
        tables: Name -> step -> rows.
        images: (tag, step).
        artifacts: Names.
        alerts: Their texts with title, in order.
        status: finished, failed, killed or crashed; "running" before the end; None if the tracker has no such thing.
    """

    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, dict[int, str]] = field(default_factory=dict)
    histograms: dict[str, dict[int, float]] = field(default_factory=dict)
    tables: dict[str, dict[int, list[list[Any]]]] = field(default_factory=dict)
    images: set[tuple[str, int]] = field(default_factory=set)
    artifacts: set[str] = field(default_factory=set)
    alerts: list[str] = field(default_factory=list)
    status: str | None = None


class TrackerService(ABC):
    """A tracker's server or files on this machine, started for a test and stopped after it.

    Attributes:
        tracker: Name in the table of trackers.
        faults: The faults that it can have; none for a tracker of local files.
    """

    tracker: str
    faults: tuple[Fault, ...] = ()

    @abstractmethod
    def start(self) -> Mapping[str, str]:
        """Start it; gives the environment variables with which the tracker finds it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and everything that it started."""

    @abstractmethod
    def read(self, run_directory: Path) -> Shown:
        """What the tracker shows now of this run (its current branch, as named in `run.json`)."""

    def as_shown(self, value: float) -> float:
        """What this tracker makes of a number: a float of 64 bits, if nothing else is said."""
        return float(value)

    def fail(self, fault: Fault | None) -> None:
        """Have this fault from now on, or none any more. Nothing that was stored is lost."""
        raise NotImplementedError(f"{self.tracker} has no faults to inject")

    def change_login(self, *, is_new: bool) -> Mapping[str, str]:
        """Accept another login alone, or the first one again; gives the environment variables with it."""
        raise NotImplementedError(f"{self.tracker} has no login")
