"""The canonical view: each step once, from the last attempt that has it.

Two rules, both about a record with step `s` of attempt `a`:

1. A `rewind{to: S}` that comes after it, in its own attempt or a later one, supersedes it if `s > S` (`to: -1`
   supersedes every step).
2. What a later attempt logged at the same step under the same name supersedes it. Names are the
   keys of a `metrics` record (so it can lose some of its keys), the tag of a histogram or text, the
   name of a table or artifact. Notes, alerts and the rest have no name and stay.

Records without a step always stay. The raw records stay in the journal in any case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from verl.journal.records import Kind, Record

_NAME_FIELD = {Kind.HISTOGRAM: "tag", Kind.TEXT: "tag", Kind.TABLE: "name", Kind.ARTIFACT: "name"}

Name = tuple[str, str]


def canonical(records: Iterable[Record]) -> Iterator[Record]:
    """Records of the canonical view, in the given order.

    Holds all records in memory; `JournalReader.canonical` reads twice instead.
    """
    everything = list(records)
    supersession = Supersession()
    for record in everything:
        supersession.add(record)
    for record in everything:
        kept = supersession.kept(record)
        if kept is not None:
            yield kept


class Supersession:
    """What later attempts superseded: first `add` every record, then ask for each what is `kept`.

    Memory: nothing for the first attempt, one small entry per step of the later ones.
    """

    def __init__(self) -> None:
        self._rewinds: list[tuple[int, int, int]] = []  # attempt, number, step
        self._logged: dict[int, set[tuple[int, frozenset[Name]]]] = {}
        self._interned: dict[frozenset[Name], frozenset[Name]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be superseded by what was added."""
        return not self._rewinds and not self._logged

    def add(self, record: Record) -> None:
        if record.kind == Kind.REWIND:
            to = record.fields.get("to")
            if isinstance(to, int):
                self._rewinds.append((record.attempt, record.seq, to))
        if record.step is None or record.attempt <= 1:
            return
        names = _names(record)
        if names:
            names = self._interned.setdefault(names, names)
            self._logged.setdefault(record.step, set()).add((record.attempt, names))

    def kept(self, record: Record) -> Record | None:
        """The record, the part of it that is not superseded, or nothing."""
        if record.step is None:
            return record
        cut = self._cut(record)
        if cut is not None and record.step > cut:
            return None
        later = [names for attempt, names in self._logged.get(record.step, ()) if attempt > record.attempt]
        if not later:
            return record
        return _without(record, frozenset().union(*later))

    def _cut(self, record: Record) -> int | None:
        """Last step that no rewind after this record took away; nothing = all stand."""
        here = (record.attempt, record.seq)
        return min((to for attempt, seq, to in self._rewinds if (attempt, seq) > here), default=None)


def _names(record: Record) -> frozenset[Name]:
    if record.kind == Kind.METRICS:
        return frozenset((Kind.METRICS.value, key) for key in record.fields["metrics"])
    if record.kind in _NAME_FIELD:
        return frozenset({(str(record.kind), str(record.fields.get(_NAME_FIELD[Kind(record.kind)])))})
    return frozenset()


def _without(record: Record, superseded: frozenset[Name]) -> Record | None:
    names = _names(record)
    if superseded.isdisjoint(names):
        return record
    if record.kind != Kind.METRICS:
        return None
    metrics = {
        key: value for key, value in record.fields["metrics"].items() if (Kind.METRICS.value, key) not in superseded
    }
    return dataclasses.replace(record, fields={**record.fields, "metrics": metrics}) if metrics else None
