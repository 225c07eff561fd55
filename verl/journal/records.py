"""Records: the typed lines a journal consists of, and how they become bytes and back.

    {"v":1,"seq":41,"t":1764500000.25,"attempt":1,"kind":"metrics","step":10,"metrics":{"loss/policy_loss":0.031}}

One record is one JSON line. `metrics` records go to one stream, all other kinds to the other
(`stream_of`). JSON has no NaN and no infinities: they are written as the text "NaN", "Infinity"
and "-Infinity", and `decode` restores them where only numbers can stand (values of `metrics`,
numbers of `histogram`).
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum, StrEnum
from pathlib import PurePath
from typing import Any

import orjson
from pydantic import BaseModel

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that a writer writes and a reader reads (a reader's memory is bounded by it)."""

_MAX_DEPTH = 100
_RESERVED = frozenset({"v", "seq", "t", "attempt", "kind", "step"})
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN_NUMBERS = frozenset({float, int})


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
        ValueError: A field has a reserved name, or a metric is not a number.
    """
    return encode_line(record.seq, record.t, record.attempt, record.kind, record.step, encode_fields(record.kind, record.fields))


def encode_line(seq: int, t: float, attempt: int, kind: str, step: int | None, body: bytes) -> bytes:
    """Line of a record whose fields are encoded already (`encode_fields`)."""
    step_text = "null" if step is None else step
    head = f'{{"v":{SCHEMA_VERSION},"seq":{seq},"t":{t!r},"attempt":{attempt},"kind":"{kind}","step":{step_text}'
    return head.encode() + (b"," if len(body) > 2 else b"") + body[1:] + b"\n"


def encode_fields(kind: str, fields: Mapping[str, Any]) -> bytes:
    """JSON object of a record's fields, non-finite numbers as text, anything not JSON as text.

    Raises:
        ValueError: A field has a reserved name, or a metric is not a number.
    """
    if not _RESERVED.isdisjoint(fields):
        names = ", ".join(sorted(_RESERVED & fields.keys()))
        raise ValueError(f"A record field cannot be named {names}: {', '.join(sorted(_RESERVED))} are set by the writer.")
    if kind == Kind.METRICS:
        fields = {**fields, "metrics": _encodable_metrics(fields["metrics"])}
        try:
            return orjson.dumps(fields)
        except TypeError:
            pass
    return orjson.dumps(plain(fields))


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
    if type(t) not in _PLAIN_NUMBERS or not (step is None or type(step) is int):
        raise MalformedRecordError("t must be a number and step a whole number or null")
    if b'"NaN"' in line or b'Infinity"' in line:
        _restore_non_finite(kind, raw)
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
        raw = {**migrations[found](raw), "v": found + 1}
        found += 1
    return raw


def plain(value: Any, depth: int = 0) -> Any:
    """Copy of a value in JSON's types: arrays as lists, non-finite numbers and unknown objects as text."""
    if value is None or value is True or value is False:
        return value
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, str):
        return _valid_text(value)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return _json_number(float(value))
    if isinstance(value, Mapping):
        return {key if type(key) is str and key.isascii() else _valid_text(str(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return plain(_unwrapped(value), depth + 1)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, BaseModel):
        return value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    # Arrays and tensors of any package, without importing one.
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return to_list()
    return str(value)


def _valid_text(text: str) -> str:
    """The text with lone surrogates (which UTF-8 cannot hold) replaced by U+FFFD."""
    if text.isascii():
        return str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encodable_metrics(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics themselves where JSON can hold them as they are (the usual case), else a copy."""
    if set(map(type, metrics.values())) <= _PLAIN_NUMBERS:
        try:
            if math.isfinite(sum(metrics.values())):  # one C loop; a non-finite value or an overflow shows in the sum
                return metrics
        except OverflowError:
            pass
    return {key: _metric_number(key, value) for key, value in metrics.items()}


def _metric_number(key: str, value: Any) -> float | int | str:
    if not isinstance(value, (str, bytes)):
        try:
            whole = operator.index(value)
            return whole if -(2**63) <= whole < 2**64 else _json_number(_as_float(whole))
        except TypeError:
            pass
        try:
            return _json_number(float(value))
        except (TypeError, ValueError):
            pass
    raise ValueError(f"Metric {key!r} is {value!r} ({type(value).__name__}); a metric is one number. Use log_text for text.")


def _as_float(whole: int) -> float:
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def _restore_non_finite(kind: str, fields: dict[str, Any]) -> None:
    """Turns text back into the non-finite numbers it stands for, in place, where only numbers can stand."""
    if kind == Kind.METRICS and type(fields.get("metrics")) is dict:
        fields["metrics"] = {key: _restored(value) for key, value in fields["metrics"].items()}
    elif kind == Kind.HISTOGRAM and type(fields.get("histogram")) is dict:
        fields["histogram"] = {key: _restored(value) for key, value in fields["histogram"].items()}


def _restored(value: Any) -> Any:
    if type(value) is str:
        return _NON_FINITE.get(value, value)
    if isinstance(value, Sequence):
        return [_restored(item) for item in value]
    return value
