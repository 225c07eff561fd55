from __future__ import annotations

import dataclasses
import math
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from verl.journal import SCHEMA_VERSION, Kind, MalformedRecordError, Record, Stream, stream_of
from verl.journal.records import MIGRATIONS, decode, encode, migrate

DATA = Path(__file__).parent / "data"


def record(kind: str, step: int | None = 3, **fields: Any) -> Record:
    return Record(SCHEMA_VERSION, 7, 1764500000.25, 2, kind, step, fields)


def same(left: Any, right: Any) -> bool:
    """Equality that takes NaN for equal to NaN and tells 1 from 1.0."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def test_a_line_is_json_in_the_documented_order() -> None:
    line = encode(record("metrics", metrics={"loss/policy_loss": 0.5}))
    assert line == (
        b'{"v":1,"seq":7,"t":1764500000.25,"attempt":2,"kind":"metrics","step":3,"metrics":{"loss/policy_loss":0.5}}\n'
    )


def test_a_record_without_step_and_fields() -> None:
    line = encode(record("span", step=None))
    assert line == b'{"v":1,"seq":7,"t":1764500000.25,"attempt":2,"kind":"span","step":null}\n'
    assert decode(line) == record("span", step=None)


def test_metrics_go_to_one_stream_and_everything_else_to_the_other() -> None:
    assert stream_of("metrics") is Stream.METRICS
    assert {stream_of(kind) for kind in Kind if kind != "metrics"} == {Stream.EVENTS}
    assert stream_of("a_kind_of_a_later_version") is Stream.EVENTS


NUMBERS = st.one_of(
    st.floats(), st.integers(min_value=-(2**63), max_value=2**64 - 1), st.sampled_from([0.0, -0.0, 5e-324, 1.7e308])
)
TEXTS = st.text(st.characters(codec="utf-8"))


@given(st.dictionaries(TEXTS, NUMBERS))
def test_metrics_come_back_exactly(metrics: dict[str, float]) -> None:
    decoded = decode(encode(record("metrics", metrics=metrics)))
    assert same(decoded.fields["metrics"], metrics)


def test_non_finite_metrics_are_text_on_disk_and_numbers_again_when_read() -> None:
    metrics = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}
    line = encode(record("metrics", metrics=metrics))
    assert orjson.loads(line)["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.0}
    assert same(decode(line).fields["metrics"], metrics)


def test_finite_metrics_whose_sum_overflows_are_kept() -> None:
    metrics = {"a": 1.7e308, "b": 1.7e308, "c": -1.0}
    assert decode(encode(record("metrics", metrics=metrics))).fields["metrics"] == metrics


def test_infinities_that_cancel_are_kept() -> None:
    metrics = {"a": math.inf, "b": -math.inf}
    assert decode(encode(record("metrics", metrics=metrics))).fields["metrics"] == metrics


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.True_, 1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(math.nan), math.nan),
        (np.int64(2**62), 2**62),
        (np.array([2.5]), 2.5),
        (10**30, 1e30),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_numbers_of_other_types_become_plain_numbers(value: Any, expected: float) -> None:
    assert same(decode(encode(record("metrics", metrics={"x": value, "y": 1.0}))).fields["metrics"]["x"], expected)


def test_true_and_false_are_numbers() -> None:
    decoded = decode(encode(record("metrics", metrics={"x": True, "y": False, "z": 0.5})))
    assert decoded.fields["metrics"] == {"x": 1, "y": 0, "z": 0.5}


@pytest.mark.parametrize("value", ["0.5", None, [1.0], np.array([1.0, 2.0]), {}, object(), b"1", 1j])
def test_a_metric_that_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Metric 'x' is .* a metric is one number"):
        encode(record("metrics", metrics={"y": 1.0, "x": value}))


def test_a_metrics_record_needs_metrics() -> None:
    with pytest.raises(ValueError, match="needs a dictionary of numbers as field 'metrics'"):
        encode(record("metrics", values={"a": 1.0}))


def test_a_rewind_record_needs_its_step() -> None:
    with pytest.raises(ValueError, match="the step to go back to"):
        encode(record("rewind", to="5"))


@pytest.mark.parametrize("name", ["v", "seq", "t", "attempt", "kind", "step"])
def test_fields_cannot_overwrite_the_fixed_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be named {name}"):
        encode(Record(1, 1, 0.0, 1, "note", None, {name: 1}))


def test_histogram_numbers_come_back_exactly() -> None:
    histogram = {
        "min": -math.inf, "max": math.inf, "num": 3, "sum": math.nan, "sum_squares": 1e300,
        "bucket_limits": [-1.0, 0.25, math.inf], "bucket_counts": [1, 2.5, 0],
    }  # fmt: skip
    decoded = decode(encode(record("histogram", tag="NaN", histogram=histogram)))
    assert same(decoded.fields, {"tag": "NaN", "histogram": histogram})


def test_a_text_that_reads_nan_stays_a_text() -> None:
    fields = {"tag": "Infinity", "text": "NaN"}
    assert decode(encode(record("text", **fields))).fields == fields


class Settings(BaseModel):
    rate: float = 0.5


@dataclasses.dataclass
class Shape:
    width: int


def test_values_json_does_not_know_become_plain() -> None:
    config = {
        "path": Path("a/b"), "day": date(2026, 1, 2), "set": {"b", "a"}, "pair": (1, 2), "array": np.eye(2),
        "bytes": b"x\xff",
        "model": Settings(), "shape": Shape(3), "kind": Kind.NOTE, "big": 2**70, "nan": math.nan, 5: None,
        "class": Shape,
    }  # fmt: skip
    decoded = decode(encode(record("config", config=config))).fields["config"]
    assert decoded == {
        "path": "a/b", "day": "2026-01-02", "set": ["a", "b"], "pair": [1, 2], "array": [[1.0, 0.0], [0.0, 1.0]],
        "bytes": "x\\xff", "model": {"rate": 0.5}, "shape": {"width": 3}, "kind": "note", "big": str(2**70),
        "nan": "NaN",
        "5": None, "class": str(Shape),
    }  # fmt: skip


def test_what_contains_itself_ends_instead_of_recursing() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert decode(encode(record("config", config=loop))).kind == "config"


def test_lone_surrogates_are_replaced_not_fatal() -> None:
    assert decode(encode(record("text", tag="a", text="x\ud800y"))).fields["text"] == "x�y"
    assert decode(encode(record("metrics", metrics={"x\ud800": 1.0}))).fields["metrics"] == {"x�": 1.0}


def test_line_breaks_in_a_text_stay_inside_the_line() -> None:
    line = encode(record("text", tag="a", text="one\ntwo\r\n\u2028three\x00"))
    assert line.count(b"\n") == 1
    assert decode(line).fields["text"] == "one\ntwo\r\n\u2028three\x00"


JSON_LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
)


def json_trees(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)


@given(st.recursive(JSON_LEAVES, json_trees, max_leaves=10))
def test_any_json_value_comes_back(value: Any) -> None:
    assert same(decode(encode(record("config", config=value))).fields, {"config": value})


def test_records_of_a_later_version_are_read_as_they_stand() -> None:
    line = b'{"v":99,"seq":1,"t":0,"attempt":1,"kind":"hologram","step":null,"depth":[1],"extra":{"a":1}}'
    assert decode(line) == Record(99, 1, 0.0, 1, "hologram", None, {"depth": [1], "extra": {"a": 1}})


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"{", b"null", b"[]", b"1", b"\x00" * 64, b"\xff\xfe{}", b'{"v":1}', b'{"seq":1}', b"{}",
        b'{"v":1,"seq":"1","t":0,"attempt":1,"kind":"note","step":null}',
        b'{"v":1,"seq":1,"t":"0","attempt":1,"kind":"note","step":null}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":5,"step":null}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"note","step":1.5}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"note","step":true}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"note","step":9223372036854775808}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"note"}',
        b'{"v":0,"seq":1,"t":0,"attempt":1,"kind":"note","step":null}',
        b'{"v":true,"seq":1,"t":0,"attempt":1,"kind":"note","step":null}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"metrics","step":1}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"metrics","step":1,"metrics":[1]}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"metrics","step":1,"metrics":{"a":"high"}}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"metrics","step":1,"metrics":{"a":null}}',
        b'{"v":1,"seq":1,"t":NaN,"attempt":1,"kind":"note","step":null}',
        b'{"v":1,"seq":1,"t":0,"attempt":1,"kind":"note","step":null}{}',
        b"[" * 5000,
    ],
)  # fmt: skip
def test_lines_that_are_no_record(line: bytes) -> None:
    with pytest.raises(MalformedRecordError):
        decode(line)


def test_older_records_are_migrated_one_version_at_a_time() -> None:
    migrations = {
        1: lambda raw: {**raw, "metrics": raw["values"]},
        2: lambda raw: {name: value for name, value in raw.items() if name != "values"},
    }
    old = {"v": 1, "seq": 4, "values": {"a": 1}}
    assert migrate(old, migrations, 3) == {"v": 3, "seq": 4, "metrics": {"a": 1}}
    assert migrate({"v": 3, "seq": 4}, migrations, 3) == {"v": 3, "seq": 4}
    with pytest.raises(MalformedRecordError, match="schema version 1"):
        migrate({"v": 1}, migrations, 3)


def test_every_older_version_has_a_migration_and_a_stored_journal() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))
    assert sorted(path.name for path in DATA.iterdir()) == [f"v{version}" for version in range(1, SCHEMA_VERSION + 1)]


def test_a_stored_journal_of_version_1_is_read() -> None:
    journal = DATA / "v1" / "journal"
    events = [decode(line) for line in (journal / "events-rank0.jsonl").read_bytes().splitlines()]
    metrics = [decode(line) for line in (journal / "metrics-rank0.jsonl").read_bytes().splitlines()]
    assert [item.kind for item in events] == [kind.value for kind in Kind if kind not in ("metrics", "span")]
    by_kind = {item.kind: item for item in events}
    assert by_kind["run"].fields["trackers"] == ["console", "tensorboard"]
    assert by_kind["config"].fields["changed"] == {"trainer.total_steps": 100}
    assert same(by_kind["histogram"].fields["histogram"]["bucket_limits"], [0.0, 0.5, math.inf])
    assert by_kind["rewind"].fields == {"to": 10}
    assert by_kind["finish"] == Record(1, 12, 1764500009.5, 2, "finish", 20, {"status": "finished", "error": None})
    assert metrics[0] == Record(
        1, 3, 1764500001.25, 1, "metrics", 10, {"metrics": {"loss/policy_loss": 0.03125, "lr": 1}}
    )
    assert same(metrics[1].fields["metrics"], {"loss/policy_loss": math.nan, "kl/kl_divergence": -math.inf})


def test_records_travel_between_processes() -> None:
    value = record("metrics", metrics={"a": 1.0})
    assert pickle.loads(pickle.dumps(value)) == value
