"""What a tracker should show of a run: the canonical view of its journal, in the form of `Shown`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from verl.journal import JournalReader, Kind, Record, RunDirectory
from verl.testing.services import Shown
from verl.tracking.config_text import flatten


def expected(run_directory: Path, as_shown: Callable[[float], float] = float) -> Shown:
    """The whole run.

    Args:
        run_directory: The run.
        as_shown: What the tracker makes of a number.
    """
    shown = Shown(status=RunDirectory.open(run_directory).status)
    for record in JournalReader(run_directory).canonical():
        _add(shown, record, as_shown)
    return shown


def _add(shown: Shown, record: Record, as_shown: Callable[[float], float]) -> None:
    fields, step = record.fields, 0 if record.step is None else record.step
    match record.kind:
        case Kind.METRICS:
            for key, value in fields["metrics"].items():
                shown.points.setdefault(key, []).append((step, as_shown(value)))
        case Kind.CONFIG:
            shown.config = flatten(fields["config"])
        case Kind.TEXT:
            shown.texts.setdefault(fields["tag"], {})[step] = fields["text"]
        case Kind.HISTOGRAM:
            shown.histograms.setdefault(fields["tag"], {})[step] = fields["histogram"]["num"]
        case Kind.TABLE:
            shown.tables.setdefault(fields["name"], {})[step] = fields["rows"]
        case Kind.ARTIFACT if fields["type"] == "image":
            shown.images.add((fields["name"], step))
        case Kind.ARTIFACT if fields["type"] == "file":
            shown.artifacts.add(fields["name"])
        case Kind.ALERT:
            shown.alerts.append(f"{fields['title']}: {fields['text']}")


def differences(wanted: Mapping[str, list[tuple[int, float]]], found: Mapping[str, list[tuple[int, float]]]) -> str:
    """How the points of two views differ, in words; empty if they do not. NaN equals NaN."""
    told = [f"lacks {key!r}" for key in wanted.keys() - found.keys()]
    told += [f"has {key!r}, which was not logged" for key in found.keys() - wanted.keys()]
    for key in wanted.keys() & found.keys():
        if not _are_equal(wanted[key], found[key]):
            told.append(f"{key!r}: wanted {wanted[key]}, found {found[key]}")
    return "; ".join(sorted(told))


def _are_equal(wanted: list[tuple[int, float]], found: list[tuple[int, float]]) -> bool:
    return len(wanted) == len(found) and all(
        step == other and (value == shown or (math.isnan(value) and math.isnan(shown)))
        for (step, value), (other, shown) in zip(wanted, found, strict=True)
    )
