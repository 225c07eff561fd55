from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from verl.errors import JournalError
from verl.journal import Cursor, JournalReader, JournalWriter, Position, Record
from verl.journal.records import encode


def metrics_line(seq: int, step: int, value: float = 1.0, t: float = 0.0, attempt: int = 1) -> bytes:
    return encode(Record(1, seq, t or float(seq), attempt, "metrics", step, {"metrics": {"a": value}}))


def note_line(seq: int, text: str = "x") -> bytes:
    return encode(Record(1, seq, float(seq), 1, "note", None, {"text": text, "level": "info"}))


def write_files(run: Path, **files: bytes) -> None:
    (run / "journal").mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, index = name.partition("__")
        dotted = f".{index}" if index else ""
        (run / "journal" / f"{stem.replace('_', '-')}{dotted}.jsonl").write_bytes(content)


def test_an_empty_run_is_an_empty_journal(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    assert list(reader.records()) == []
    assert reader.follow() == ([], Cursor())
    assert reader.metrics() == {}


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="There is no folder"):
        JournalReader(tmp_path / "no")


def test_both_streams_and_all_segments_come_in_order_of_seq(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        metrics_rank0=metrics_line(1, 1) + metrics_line(4, 2),
        metrics_rank0__1=metrics_line(5, 3),
        metrics_rank0__2=b"",
        metrics_rank0__10=metrics_line(9, 5),
        metrics_rank0__3=metrics_line(8, 4),
        events_rank0=note_line(2) + note_line(3) + note_line(6),
        events_rank0__1=note_line(7),
    )
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == list(range(1, 10))
    assert reader.problems == []


def test_writers_are_merged_by_time_and_kept_in_order_within(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        metrics_rank0=metrics_line(1, 1, t=10)
        + metrics_line(2, 2, t=30)
        + metrics_line(3, 3, t=5)
        + metrics_line(4, 4, t=40),
        metrics_rank1=metrics_line(1, 11, t=20) + metrics_line(2, 12, t=35),
    )
    assert [record.step for record in JournalReader(tmp_path).records()] == [1, 11, 2, 3, 12, 4]


def test_only_the_wanted_kinds(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.append("note", text="x", level="info")
        journal.append("alert", title="t", text="x", level="info")
    with (tmp_path / "journal" / "events-rank0.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    reader = JournalReader(tmp_path)
    assert [record.kind for record in reader.records({"metrics"})] == ["metrics"]
    assert reader.num_problems == 0
    assert [record.kind for record in reader.records({"alert", "metrics"})] == ["metrics", "alert"]
    assert reader.num_problems == 1


def test_garbage_lines_are_skipped_counted_and_located(tmp_path: Path) -> None:
    first, second, third = metrics_line(1, 1), metrics_line(2, 2), metrics_line(3, 3)
    garbage = [
        b"\x00" * 500 + b"\n",
        b"not json\n",
        b"\n",
        b"\xff\xfe\xe2\x82\n",
        b'{"v":1}\n',
        b'"' + b"x" * 5000 + b"\n",
    ]
    write_files(tmp_path, metrics_rank0=first + garbage[0] + garbage[1] + second + b"".join(garbage[2:]) + third)
    reader = JournalReader(tmp_path)
    for _ in range(2):  # reading again does not count again
        assert [record.seq for record in reader.records()] == [1, 2, 3]
        assert reader.num_problems == len(garbage)
    assert reader.problems[0].offset == len(first)
    assert str(reader.problems[1]).startswith(f"metrics-rank0.jsonl at byte {len(first) + 501}: not JSON")


def test_a_torn_last_line_is_left_alone_and_is_no_problem(tmp_path: Path) -> None:
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1) + metrics_line(2, 2)[:-1])
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == [1]
    assert reader.problems == []


def test_a_torn_line_before_a_later_segment_is_a_problem(tmp_path: Path) -> None:
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1) + b"torn", metrics_rank0__1=metrics_line(2, 2))
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == [1, 2]
    assert [problem.reason for problem in reader.problems] == ["an unfinished line at the end of a full segment"]


def test_a_line_longer_than_any_record_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.journal.tail.MAX_LINE_BYTES", 1000)
    write_files(
        tmp_path, metrics_rank0=metrics_line(1, 1) + b"x" * 3_000_000 + b"\n" + metrics_line(2, 2) + b"y" * 5000
    )
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == [1, 2]
    assert [problem.reason for problem in reader.problems] == ["a line of 3000001 bytes, longer than any record"]


def test_deleted_segments_are_passed_over(tmp_path: Path) -> None:
    write_files(tmp_path, metrics_rank0__2=metrics_line(5, 1), metrics_rank0__5=metrics_line(9, 2))
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == [5, 9]
    assert [record.seq for record in reader.follow(Cursor({"metrics-rank0": Position(1, 70)}))[0]] == [5, 9]


def test_reading_a_long_journal_takes_little_memory(tmp_path: Path) -> None:
    line = encode(Record(1, 1, 0.0, 1, "text", 1, {"tag": "a", "text": "x" * 10_000}))
    write_files(tmp_path, events_rank0=line * 3000)
    tracemalloc.start()
    count = sum(1 for _ in JournalReader(tmp_path).records())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 3000
    assert peak < 3_000_000  # the file has 30 MB


def test_metrics_are_arrays_by_key_of_the_canonical_view(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        for step in (1, 2, 3):
            journal.append("metrics", step, metrics={"loss": step / 2, "lr": 1})
        journal.append("metrics", 3, metrics={"val/reward": 0.5})
        journal.append("metrics", metrics={"whole_run": 1.0})
    with JournalWriter(tmp_path, attempt=2) as journal:
        journal.append("rewind", to=1)
        journal.append("metrics", 2, metrics={"loss": 20.0})
        journal.append("metrics", 2, metrics={"loss": math.nan})
    metrics = JournalReader(tmp_path).metrics()
    assert metrics.keys() == {"loss", "lr"}
    assert metrics["loss"].steps.tolist() == [1, 2]
    assert metrics["loss"].steps.dtype == np.int64
    np.testing.assert_array_equal(metrics["loss"].values, [0.5, math.nan])
    assert metrics["lr"].values.tolist() == [1.0]
    assert metrics["loss"].times.shape == (2,)


# Following.


def test_following_returns_only_what_is_new(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    cursor: Cursor | None = None
    with JournalWriter(tmp_path, attempt=1) as journal:
        for step in range(1, 6):
            journal.append("metrics", step, metrics={"a": 1.0})
            journal.append("note", step, text="x", level="info")
            records, cursor = reader.follow(cursor)
            assert [(record.kind, record.step) for record in records] == [("metrics", step), ("note", step)]
            assert reader.follow(cursor) == ([], cursor)


def test_following_picks_up_new_segments_and_new_writers(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    cursor: Cursor | None = None
    seen: list[int] = []
    with JournalWriter(tmp_path, attempt=1, rotate_bytes=300) as journal:
        for step in range(20):
            journal.append("metrics", step, metrics={"a": 1.0})
            records, cursor = reader.follow(cursor)
            seen += [record.step for record in records if record.step is not None]
    assert seen == list(range(20))
    assert cursor is not None
    assert cursor.positions["metrics-rank0"].segment >= 5
    with JournalWriter(tmp_path, "rank1", attempt=1) as journal:
        journal.append("metrics", 99, metrics={"a": 1.0})
    records, cursor = reader.follow(cursor)
    assert [record.step for record in records] == [99]


def test_following_in_small_pieces_keeps_the_order(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1, rotate_bytes=2000) as journal:
        for step in range(50):
            journal.append("metrics", step, metrics={"a": 1.0})
            journal.append("text", step, tag="t", text="x" * 200)
    reader = JournalReader(tmp_path)
    cursor, seen, calls = Cursor(), [], 0
    while True:
        records, cursor = reader.follow(Cursor.from_json(cursor.to_json()), max_bytes=500)
        if not records:
            break
        calls += 1
        seen += [record.seq for record in records]
    assert seen == list(range(1, 101))
    assert calls > 20


def test_following_never_parses_a_torn_line(tmp_path: Path) -> None:
    line = metrics_line(2, 2)
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1))
    path = tmp_path / "journal" / "metrics-rank0.jsonl"
    reader = JournalReader(tmp_path)
    records, cursor = reader.follow()
    assert len(records) == 1
    for length in range(len(line)):
        path.write_bytes(metrics_line(1, 1) + line[:length])
        assert reader.follow(cursor) == ([], cursor)
    path.write_bytes(metrics_line(1, 1) + line)
    records, cursor = reader.follow(cursor)
    assert [record.seq for record in records] == [2]
    assert reader.problems == []


def test_following_goes_on_after_a_repaired_tail(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
    with (tmp_path / "journal" / "metrics-rank0.jsonl").open("ab") as file:
        file.write(b'{"v":1,"se')
    reader = JournalReader(tmp_path)
    _, cursor = reader.follow()
    with JournalWriter(tmp_path, attempt=2) as journal:
        journal.append("metrics", 2, metrics={"a": 1.0})
    records, cursor = reader.follow(cursor)
    assert [record.kind for record in records] == ["note", "metrics"]
    assert reader.problems == []


def test_lines_taken_back_behind_a_cursor_lose_nothing_that_follows(tmp_path: Path) -> None:
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1) + metrics_line(2, 2) + metrics_line(3, 3))
    reader = JournalReader(tmp_path)
    _, cursor = reader.follow()
    longer = encode(Record(1, 2, 2.0, 1, "metrics", 20, {"metrics": {"a_longer_key_than_before": 1.0}}))
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1) + longer)
    records, cursor = reader.follow(cursor)
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1) + longer + metrics_line(3, 30) + metrics_line(4, 40))
    more, cursor = reader.follow(cursor)
    assert [record.step for record in records + more][-2:] == [30, 40]
    assert reader.problems == []


def test_a_reader_that_looks_between_two_streams_still_delivers_in_order(tmp_path: Path) -> None:
    """A record that is written while the other stream is being read is not overtaken by a later one."""
    write_files(tmp_path, events_rank0=b"", metrics_rank0=metrics_line(1, 1))
    reader = JournalReader(tmp_path)
    records = reader.records()
    assert next(records).seq == 1
    write_files(tmp_path, events_rank0=note_line(2), metrics_rank0=metrics_line(1, 1) + metrics_line(3, 3))
    assert [record.seq for record in records] == [2, 3]


def test_cursors_are_json() -> None:
    cursor = Cursor({"metrics-rank0": Position(1, 5120), "events-rank0": Position(0, 88)})
    assert cursor.to_json() == '{"metrics-rank0":[1,5120],"events-rank0":[0,88]}'
    assert Cursor.from_json(cursor.to_json()) == cursor
    assert Cursor.from_json(b"{}") == Cursor()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":1}', '{"a":[1,2,3]}', '{"a":["x",1]}', '{"a":[-1,0]}', "null"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(JournalError, match="Not a journal cursor"):
        Cursor.from_json(text)


def test_a_cursor_beyond_the_end_waits_for_more(tmp_path: Path) -> None:
    write_files(tmp_path, metrics_rank0=metrics_line(1, 1))
    reader = JournalReader(tmp_path)
    assert reader.follow(Cursor({"metrics-rank0": Position(0, 10**12)}))[0] == []
    assert reader.follow(Cursor({"metrics-rank0": Position(7, 0)}))[0] == []
