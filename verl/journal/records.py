"""Records: the typed lines a journal consists of, and how they become bytes and back.

    {"v":1,"seq":41,"t":1764500000.25,"attempt":1,"kind":"metrics","step":10,"metrics":{"loss/policy_loss":0.031}}

One record is one JSON line. `metrics` records go to one stream, all other kinds to the other
(`stream_of`). JSON has no NaN and no infinities: they are written as the text "NaN", "Infinity"
and "-Infinity", and `decode` restores them where only numbers can stand (values of `metrics`,
numbers of `histogram`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from verl.journal.plain_values import (
    are_finite,
    are_numbers,
    metric_number,
    number_as_json,
    number_from_json,
    plain,
)

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that a writer writes and a reader reads (a reader's memory is bounded by it)."""

LARGEST_STEP = 2**63 - 1
_RESERVED = frozenset({"v", "seq", "t", "attempt", "kind", "step"})


class Kind(StrEnum):
    """What a record tells; in brackets its fields."""

    RUN = "run"
    """Opens an attempt [run_id, project, experiment, total_steps, trackers, run_dir_name]."""
    CONFIG = "config"
    """The resolved configuration [config, changed: dotted key -> value]."""
    METRICS = "metrics"
    """Scalars of a step [metrics: key -> number]."""
    HISTOGRAM = "histogram"
    """A distribution [tag, histogram: min, max, num, sum, sum_squares, bucket_limits, bucket_counts]."""
    TEXT = "text"
    """A text [tag, text]."""
    TABLE = "table"
    """A table such as validation generations [name, columns, rows]."""
    ARTIFACT = "artifact"
    """A file in the run directory [name, path (relative to it), type, metadata]."""
    SPAN = "span"
    """Reserved for tracing."""
    ALERT = "alert"
    """Something a person should look at [title, text, level]."""
    NOTE = "note"
    """Something the program noticed about itself [text, level]."""
    REWIND = "rewind"
    """Training went back [to: step]; what earlier attempts logged after it is superseded."""
    FINISH = "finish"
    """Closes an attempt [status: finished | failed | killed, error]."""


class Stream(StrEnum):
    """The two files each writer appends to: small and hot, or larger and seldom read."""

    METRICS = "metrics"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal.

    Example: `Record(v=1, seq=41, t=1764500000.25, attempt=1, kind="metrics", step=10,
    fields={"metrics": {"loss/policy_loss": 0.031}})`.

    Attributes:
        v: Schema version it has (a newer one than `SCHEMA_VERSION` is read as it stands).
        seq: Number within its writer, shared by both streams, rising by one per record.
        t: Unix time in seconds; never used for order within a writer (clocks step back).
        attempt: Attempt (start or restart) of the run that wrote it, from 1.
        kind: A `Kind`, or the text of a kind that this version does not know.
        step: Training step, or nothing for facts of the whole run.
        fields: What the kind carries (see `Kind`), and fields that a newer version added.
    """

    v: int
    seq: int
    t: float
    attempt: int
    kind: str
    step: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Draft:
    """A record before the writer gives it number, time and attempt (for `JournalWriter.append_many`)."""

    kind: str
    step: int | None
    fields: dict[str, Any]


class MalformedRecordError(ValueError):
    """A line is not a record: not JSON, not an object, or without one of the fixed fields."""


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Schema version -> function that turns a raw record of this version into one of the next.

A change of `SCHEMA_VERSION` adds an entry here and a stored file of the old version in
`tests/journal/data/`.
"""


def stream_of(kind: str) -> Stream:
    """Stream that a kind is written to; unknown kinds are events."""
    return Stream.METRICS if kind == Kind.METRICS else Stream.EVENTS


def encode(record: Record) -> bytes:
    """Bytes of a record: one JSON line with its newline.

    Raises:
        ValueError: A field has a reserved name or is missing, or a metric is not a number.
    """
    if record.kind == Kind.METRICS:
        _, body = encode_metrics(record.fields)
    else:
        body = encode_event(record.kind, plain_event(record.kind, record.fields))
    return encode_line(record.seq, record.t, record.attempt, record.kind, record.step, body)


def encode_metrics(fields: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Fields of a metrics record as a reader will see them, and their JSON. True and false count as 1 and 0.

    Raises:
        ValueError: A field has a reserved name or is missing, or a metric is not a number.
    """
    metrics = fields.get("metrics")
    if type(metrics) is not dict and not isinstance(metrics, Mapping):
        raise ValueError(f"A metrics record needs a dictionary of numbers as field 'metrics', not {metrics!r:.200}.")
    others: dict[str, Any] = {}
    if len(fields) > 1:
        _check_names(fields)
        others = plain({name: value for name, value in fields.items() if name != "metrics"})
    if type(metrics) is dict and are_finite(metrics):  # the usual case: JSON takes them as they are
        kept = {**others, "metrics": metrics.copy()}
        try:
            return kept, orjson.dumps(kept)
        except TypeError:  # keys that are no text, whole numbers beyond 64 bits
            pass
    kept = {**others, "metrics": {str(key): metric_number(key, value) for key, value in metrics.items()}}
    written = {key: number_as_json(value) for key, value in kept["metrics"].items()}
    return kept, orjson.dumps(plain({**others, "metrics": written}))


def plain_event(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of any other record as a reader will see them: a copy in JSON's types.

    Raises:
        ValueError: A field has a reserved name or is missing.
    """
    _check_names(fields)
    if kind == Kind.REWIND and type(fields.get("to")) is not int:
        raise ValueError(f"A rewind record needs the step to go back to as field 'to', not {fields.get('to')!r}.")
    kept = plain(fields)
    _restore_non_finite(kind, kept)
    return kept


def encode_event(kind: str, fields: dict[str, Any]) -> bytes:
    """JSON object of fields that `plain_event` made."""
    return orjson.dumps(plain(fields) if kind == Kind.HISTOGRAM else fields)


def _check_names(fields: Mapping[str, Any]) -> None:
    if not _RESERVED.isdisjoint(fields):
        names = ", ".join(sorted(_RESERVED & fields.keys()))
        raise ValueError(f"A record field cannot be named {names}: the writer sets {', '.join(sorted(_RESERVED))}.")


def encode_line(seq: int, t: float, attempt: int, kind: str, step: int | None, body: bytes) -> bytes:
    """Line of a record whose fields are encoded already."""
    step_text = "null" if step is None else step
    comma = "," if len(body) > 2 else ""
    head = f'{{"v":{SCHEMA_VERSION},"seq":{seq},"t":{t!r},"attempt":{attempt},"kind":"{kind}","step":{step_text}{comma}'
    return head.encode() + body[1:] + b"\n"


def decode(line: bytes) -> Record:
    """Record of one line (with or without its newline). Unknown kinds and fields are kept.

    Raises:
        MalformedRecordError: The line is not a record.
    """
    try:
        raw = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise MalformedRecordError(f"not JSON: {error}") from None
    if type(raw) is not dict:
        raise MalformedRecordError("not a JSON object")
    raw = migrate(raw, MIGRATIONS, SCHEMA_VERSION)
    try:
        v, seq, t = raw.pop("v"), raw.pop("seq"), raw.pop("t")
        attempt, kind, step = raw.pop("attempt"), raw.pop("kind"), raw.pop("step")
    except KeyError as error:
        raise MalformedRecordError(f"no field {error}") from None
    if not (type(v) is type(seq) is type(attempt) is int and type(kind) is str):
        raise MalformedRecordError("v, seq and attempt must be whole numbers and kind a text")
    if type(t) not in (float, int) or not (
        step is None or (type(step) is int and -LARGEST_STEP <= step <= LARGEST_STEP)
    ):
        raise MalformedRecordError("t must be a number and step null or a whole number of 64 bits")
    if b'"NaN"' in line or b'Infinity"' in line:
        _restore_non_finite(kind, raw)
    if kind == Kind.METRICS and not (type(raw.get("metrics")) is dict and are_numbers(raw["metrics"])):
        raise MalformedRecordError("metrics must be an object of numbers")
    return Record(v, seq, float(t), attempt, kind, step, raw)


def migrate(
    raw: dict[str, Any], migrations: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]], version: int
) -> dict[str, Any]:
    """Raw record brought up to `version`; a newer one is left as it is.

    Raises:
        MalformedRecordError: It has no version, or no migration leads on from its version.
    """
    found = raw.get("v")
    if type(found) is not int:
        raise MalformedRecordError("no field 'v'")
    while found < version:
        if found not in migrations:
            raise MalformedRecordError(f"schema version {found} is unknown")
        try:
            raw = {**migrations[found](raw), "v": found + 1}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedRecordError(f"not a record of schema version {found}: {error!r}") from error
        found += 1
    return raw


def _restore_non_finite(kind: str, fields: dict[str, Any]) -> None:
    """Turns text back into the non-finite numbers it stands for, in place, where only numbers can stand."""
    name = str(kind)
    if name in ("metrics", "histogram") and type(fields.get(name)) is dict:
        fields[name] = {key: number_from_json(value) for key, value in fields[name].items()}
