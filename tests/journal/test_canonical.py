from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from verl.journal import JournalReader, JournalWriter, Record, canonical

NAMED = {"histogram": "tag", "text": "tag", "table": "name", "artifact": "name"}


def record(seq: int, attempt: int, kind: str, step: int | None, **fields: Any) -> Record:
    return Record(1, seq, float(seq), attempt, kind, step, fields)


def metrics(seq: int, attempt: int, step: int | None, **values: float) -> Record:
    return record(seq, attempt, "metrics", step, metrics=values)


def test_one_attempt_is_its_own_canonical_view() -> None:
    records = [metrics(1, 1, 1, a=1.0), metrics(2, 1, 1, b=2.0), record(3, 1, "note", None, text="x")]
    assert list(canonical(records)) == records


def test_a_rewind_supersedes_what_earlier_attempts_logged_after_it() -> None:
    records = [
        metrics(1, 1, 1, a=1.0),
        metrics(2, 1, 2, a=2.0),
        record(3, 1, "alert", 2, title="t"),
        record(4, 1, "note", None, text="no step"),
        metrics(5, 1, 3, a=3.0),
        record(6, 2, "rewind", None, to=1),
        metrics(7, 2, 2, a=20.0),
    ]
    assert [item.seq for item in canonical(records)] == [1, 4, 6, 7]


def test_the_deepest_of_several_rewinds_decides() -> None:
    records = [
        *(metrics(step, 1, step, a=1.0) for step in range(1, 6)),
        record(6, 2, "rewind", None, to=4),
        metrics(7, 2, 5, a=2.0),
        metrics(8, 2, 6, a=2.0),
        record(9, 3, "rewind", None, to=2),
        metrics(10, 3, 3, a=3.0),
        record(11, 4, "rewind", None, to=3),
        metrics(12, 4, 4, a=4.0),
    ]
    assert [(item.step, item.attempt) for item in canonical(records) if item.step] == [(1, 1), (2, 1), (3, 3), (4, 4)]


def test_a_start_from_scratch_supersedes_every_step() -> None:
    records = [
        metrics(1, 1, 0, a=1.0),
        metrics(2, 1, 9, a=1.0),
        record(3, 2, "rewind", None, to=-1),
        metrics(4, 2, 0, a=2.0),
    ]
    assert [item.seq for item in canonical(records)] == [3, 4]


def test_a_rewind_does_not_touch_what_comes_after_it() -> None:
    records = [record(1, 2, "rewind", None, to=1), metrics(2, 2, 9, a=1.0), metrics(3, 3, 9, b=1.0)]
    assert list(canonical(records)) == records


def test_a_rewind_within_an_attempt_supersedes_what_came_before_it() -> None:
    records = [
        metrics(1, 1, 1, a=1.0),
        metrics(2, 1, 2, a=1.0),
        record(3, 1, "rewind", None, to=1),
        metrics(4, 1, 2, a=2.0),
    ]
    assert [item.seq for item in canonical(records)] == [1, 3, 4]


def test_without_a_rewind_a_step_is_shown_from_its_last_attempt() -> None:
    records = [
        metrics(1, 1, 1, a=1.0),
        metrics(2, 1, 2, a=2.0),
        record(3, 1, "text", 2, tag="s", text="old"),
        record(4, 1, "text", 2, tag="other", text="kept"),
        metrics(5, 2, 2, a=20.0),
        record(6, 2, "text", 2, tag="s", text="new"),
        metrics(7, 2, 3, a=30.0),
    ]
    assert [item.seq for item in canonical(records)] == [1, 4, 5, 6, 7]


def test_metrics_that_a_later_attempt_did_not_log_again_stay() -> None:
    """A validation right after resuming at step 5 does not hide the training metrics of step 5."""
    records = [metrics(1, 1, 5, loss=1.0, lr=2.0), metrics(2, 2, 5, **{"val/reward": 0.5, "lr": 3.0})]
    assert [item.fields["metrics"] for item in canonical(records)] == [{"loss": 1.0}, {"val/reward": 0.5, "lr": 3.0}]
    assert records[0].fields["metrics"] == {"loss": 1.0, "lr": 2.0}


STEPS = st.none() | st.integers(0, 6)
KEYS = st.sampled_from("abc")


@st.composite
def journals(draw: st.DrawFn) -> list[Record]:
    records: list[Record] = []
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        for _ in range(draw(st.integers(0, 8))):
            seq, step = len(records) + 1, draw(STEPS)
            kind = draw(st.sampled_from(["metrics", "metrics", "text", "note", "rewind"]))
            fields: dict[str, Any] = {
                "metrics": {"metrics": draw(st.dictionaries(KEYS, st.just(float(seq)), min_size=1))},
                "text": {"tag": draw(KEYS), "text": "x"},
                "note": {"text": "x", "level": "info"},
                "rewind": {"to": draw(st.integers(-1, 6))},
            }[kind]
            records.append(Record(1, seq, float(seq), attempt, kind, None if kind == "rewind" else step, fields))
    return records


def naive(records: list[Record]) -> list[tuple[int, dict[str, Any]]]:
    """The definition, word by word, for each record against all others."""
    kept = []
    for item in records:
        fields = item.fields
        if item.step is not None:
            rewound = any(
                other.kind == "rewind" and other.seq > item.seq and item.step > other.fields["to"] for other in records
            )
            again = [other for other in records if other.attempt > item.attempt and other.step == item.step]
            if rewound:
                continue
            if item.kind == "metrics":
                newer = {key for other in again if other.kind == "metrics" for key in other.fields["metrics"]}
                values = {key: value for key, value in fields["metrics"].items() if key not in newer}
                if not values:
                    continue
                fields = {"metrics": values}
            elif item.kind in NAMED:
                name = NAMED[item.kind]
                if any(other.kind == item.kind and other.fields[name] == fields[name] for other in again):
                    continue
        kept.append((item.seq, fields))
    return kept


@given(journals())
def test_the_view_is_what_its_definition_says(records: list[Record]) -> None:
    view = list(canonical(records))
    assert [(item.seq, item.fields) for item in view] == naive(records)
    assert list(canonical(view)) == view


@given(journals())
def test_every_metric_has_one_attempt_per_step(records: list[Record]) -> None:
    attempts: dict[tuple[str, int], set[int]] = {}
    for item in canonical(records):
        if item.kind == "metrics" and item.step is not None:
            for key in item.fields["metrics"]:
                attempts.setdefault((key, item.step), set()).add(item.attempt)
    assert all(len(found) == 1 for found in attempts.values())


def test_the_reader_gives_the_same_view_as_the_function(tmp_path: Path) -> None:
    for attempt, start in ((1, 0), (2, 5), (3, 3)):
        with JournalWriter(tmp_path, attempt=attempt, rotate_bytes=500) as journal:
            if attempt > 1:
                journal.append("rewind", to=start)
            for step in range(start + 1, start + 8):
                journal.append("metrics", step, metrics={"a": float(attempt)})
                journal.append("text", step, tag="t", text=str(attempt))
    reader = JournalReader(tmp_path)
    view = list(reader.canonical())
    assert view == list(canonical(reader.records()))
    assert [item for item in view if item.kind == "metrics"] == list(reader.canonical({"metrics"}))
    assert [(item.step, item.attempt) for item in view if item.kind == "text"] == [
        (1, 1), (2, 1), (3, 1), *((step, 3) for step in range(4, 11)),
    ]  # fmt: skip
