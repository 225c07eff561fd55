from __future__ import annotations

import math
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from verl.errors import JournalError
from verl.journal import Draft, JournalReader, JournalWriter, Kind, Record


def read(run: Path) -> list[Record]:
    reader = JournalReader(run)
    records = list(reader.records())
    assert reader.problems == []
    return records


def test_append_returns_the_record_that_a_reader_sees(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=3) as journal:
        written = [
            journal.append("run", run_id="abc", trackers=["console"]),
            journal.append(Kind.METRICS, 1, metrics={"a": 1.5, "b": np.float32(2.0), "n": 3}),
            journal.append(
                "histogram", 1, tag="h", histogram={"min": -math.inf, "bucket_limits": np.array([0.0, 1.0])}
            ),
            journal.append("table", 1, name="t", columns=("x", "y"), rows=[(1, None), (2, "z")]),
            journal.append("rewind", to=0),
            journal.append("finish", np.int64(7), status="finished", error=None),
        ]
    assert read(tmp_path) == written
    assert [record.seq for record in written] == [1, 2, 3, 4, 5, 6]
    assert {record.attempt for record in written} == {3}
    assert written[1].fields == {"metrics": {"a": 1.5, "b": 2.0, "n": 3}}
    assert written[3].fields["rows"] == [[1, None], [2, "z"]]
    assert written[5].step == 7


def test_later_changes_of_the_values_do_not_change_the_record(tmp_path: Path) -> None:
    metrics, columns = {"a": 1.0}, ["x"]
    with JournalWriter(tmp_path, attempt=1) as journal:
        first = journal.append("metrics", 1, metrics=metrics)
        second = journal.append("table", 1, name="t", columns=columns, rows=[])
        metrics["a"] = 2.0
        columns.append("y")
    assert [first, second] == read(tmp_path)


def test_metrics_and_events_are_in_files_of_their_own_and_share_the_numbers(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        for step in range(3):
            journal.append("metrics", step, metrics={"a": 1.0})
            journal.append("note", text="x", level="info")
    files = {path.name: path.read_text() for path in (tmp_path / "journal").glob("*.jsonl")}
    assert files.keys() == {"metrics-rank0.jsonl", "events-rank0.jsonl"}
    assert files["metrics-rank0.jsonl"].count("\n") == files["events-rank0.jsonl"].count("\n") == 3
    assert [record.seq for record in read(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_every_append_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        for step in range(5):
            journal.append("metrics", step, metrics={"a": 1.0})
            assert len(read(tmp_path)) == step + 1


def test_reopening_continues_the_numbers(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.append("note", text="x", level="info")
    with JournalWriter(tmp_path, attempt=2) as journal:
        assert journal.next_seq == 3
        journal.append("metrics", 2, metrics={"a": 2.0})
    with JournalWriter(tmp_path, attempt=3) as journal:
        assert journal.append("note", text="y", level="info").seq == 4
    assert [(record.seq, record.attempt) for record in read(tmp_path)] == [(1, 1), (2, 1), (3, 2), (4, 3)]


def test_a_torn_line_is_cut_off_kept_aside_and_noted(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.append("metrics", 2, metrics={"a": 2.0})
    path = tmp_path / "journal" / "metrics-rank0.jsonl"
    torn = b'{"v":1,"seq":3,"t":17\xe2\x82'
    with path.open("ab") as file:
        file.write(torn)
    with JournalWriter(tmp_path, attempt=2) as journal:
        journal.append("metrics", 3, metrics={"a": 3.0})
    records = read(tmp_path)
    assert [record.fields["metrics"]["a"] for record in records if record.kind == "metrics"] == [1.0, 2.0, 3.0]
    note = records[2]
    assert (note.kind, note.fields["level"]) == ("note", "warning")
    assert "metrics-rank0.jsonl" in note.fields["text"]
    assert "23 bytes" in note.fields["text"]
    assert path.with_name("metrics-rank0.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_file_that_is_one_torn_line_is_repaired(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal" / "events-rank0.jsonl"
    path.write_bytes(b"x" * 200_000)
    with JournalWriter(tmp_path, attempt=1) as journal:
        assert journal.append("note", text="y", level="info").seq == 2
    assert path.with_name("events-rank0.jsonl.torn").stat().st_size == 200_001
    assert [record.kind for record in read(tmp_path)] == ["note", "note"]


def test_full_segments_are_followed_by_the_next_number_and_never_renamed(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1, rotate_bytes=1000) as journal:
        for step in range(100):
            journal.append("metrics", step, metrics={"a": 1.0})
            journal.append("text", step, tag="t", text="x" * 300)
    folder = tmp_path / "journal"
    assert {f"metrics-rank0{end}.jsonl" for end in ("", ".1", ".2", ".9")} <= {path.name for path in folder.iterdir()}
    assert all(path.stat().st_size <= 1000 for path in folder.glob("*.jsonl"))
    assert [record.seq for record in read(tmp_path)] == list(range(1, 201))
    with JournalWriter(tmp_path, attempt=2, rotate_bytes=1000) as journal:
        assert journal.next_seq == 201


def test_a_record_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1, rotate_bytes=1000) as journal:
        for _ in range(3):
            journal.append("text", 1, tag="t", text="x" * 5000)
    assert len(list((tmp_path / "journal").glob("events-*.jsonl"))) == 3
    assert len(read(tmp_path)) == 3


def test_numbers_continue_after_an_empty_last_segment(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
    (tmp_path / "journal" / "metrics-rank0.1.jsonl").touch()
    with JournalWriter(tmp_path, attempt=2) as journal:
        assert journal.append("metrics", 2, metrics={"a": 2.0}).seq == 2
    assert (tmp_path / "journal" / "metrics-rank0.1.jsonl").stat().st_size > 0
    assert len(read(tmp_path)) == 2


def test_numbers_continue_after_garbage_at_the_end(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.append("metrics", 2, metrics={"a": 2.0})
    with (tmp_path / "journal" / "metrics-rank0.jsonl").open("ab") as file:
        file.write(b"\n" * 1000 + b"garbage\n" * 20_000 + b"\x00" * 100_000 + b"\n")
    with JournalWriter(tmp_path, attempt=2) as journal:
        assert journal.next_seq == 3


def test_append_many_appends_in_order(tmp_path: Path) -> None:
    drafts = [
        Draft("metrics", 1, {"metrics": {"a": 1.0}}),
        Draft("note", None, {"text": "x", "level": "info"}),
        Draft("metrics", 2, {"metrics": {"a": 2.0}}),
    ]
    with JournalWriter(tmp_path, attempt=1) as journal:
        written = journal.append_many(drafts)
        assert journal.append_many([]) == []
        assert journal.next_seq == 4
    assert [record.kind for record in written] == ["metrics", "note", "metrics"]
    assert read(tmp_path) == written


def test_one_bad_draft_keeps_all_of_them_out(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        with pytest.raises(ValueError, match="Metric 'a'"):
            journal.append_many([Draft("note", None, {"text": "x"}), Draft("metrics", 1, {"metrics": {"a": "high"}})])
        assert journal.append("note", text="y", level="info").seq == 1
    assert len(read(tmp_path)) == 1


def test_threads_can_append_to_one_writer(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for step in range(200):
            journal.append("metrics", step, metrics={f"thread/{number}": float(step)})
            if step % 50 == 0:
                journal.append_many([Draft("note", step, {"text": str(number), "level": "info"})] * 2)
                journal.sync()

    with JournalWriter(tmp_path, attempt=1, rotate_bytes=20_000, sync_seconds=0.01) as journal:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = read(tmp_path)
    assert [record.seq for record in records] == list(range(1, 4 * 208 + 1))
    for number in range(4):
        steps = [record.step for record in records if f"thread/{number}" in record.fields.get("metrics", {})]
        assert steps == list(range(200))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # from 3.12 on: forking beside threads
def test_a_forked_child_may_not_write(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer = b"no error"
            try:
                journal.append("metrics", 2, metrics={"a": 2.0})
            except JournalError as error:
                answer = str(error).encode()
            journal.close()
            os.write(write_end, answer)
            os._exit(0)
        os.close(write_end)
        answer = os.read(read_end, 1000).decode()
        os.close(read_end)
        os.waitpid(pid, 0)
        assert f"Process {pid} was forked from process {os.getpid()}" in answer
        assert journal.append("metrics", 2, metrics={"a": 2.0}).seq == 2
    assert [record.step for record in read(tmp_path)] == [1, 2]


def test_two_writers_of_one_name_are_refused_with_process_and_host(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        with pytest.raises(JournalError, match=f"This same process \\({os.getpid()}\\) already writes .*'rank0'"):
            JournalWriter(tmp_path, attempt=1)
        with JournalWriter(tmp_path, "rank1", attempt=1) as other:
            other.append("note", text="x", level="info")
        journal.append("note", text="y", level="info")
    with JournalWriter(tmp_path, attempt=2) as again:
        assert again.next_seq == 2


def test_nothing_can_be_appended_after_close(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, attempt=1)
    journal.append("note", text="x", level="info")
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append("note", text="y", level="info")
    with pytest.raises(JournalError, match="is closed"):
        journal.sync()


@pytest.mark.parametrize("name", ["", "rank 0", "rank0.1", "../rank0", "rank/0", "rang0é"])
def test_names_of_writers_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="use letters, digits"):
        JournalWriter(tmp_path, name, attempt=1)


def test_unknown_kinds_and_bad_steps_are_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        with pytest.raises(ValueError, match="Unknown record kind 'metric'; there are run, config, metrics"):
            journal.append("metric", 1, metrics={"a": 1.0})
        with pytest.raises(ValueError, match=r"Step 1.5 \(float\) is not a whole number"):
            journal.append("metrics", 1.5, metrics={"a": 1.0})  # type: ignore[arg-type]
        assert journal.next_seq == 1
    assert read(tmp_path) == []


def test_a_record_that_no_reader_would_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.journal.writer.MAX_LINE_BYTES", 2**20)
    with JournalWriter(tmp_path, attempt=1) as journal:
        with pytest.raises(
            ValueError, match=r"A text record of 1 MiB is too large \(at most 1 MiB\). Write it to a file"
        ):
            journal.append("text", 1, tag="t", text="x" * 2**20)
        journal.append("text", 1, tag="t", text="x" * (2**20 - 2000))
    assert len(read(tmp_path)) == 1


def test_secrets_are_masked_before_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "tellNobody42")
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append(
            "config", config={"trainer": {"hf_token": "hf_plain", "max_tokens": 5}, "path": Path("tellNobody42")}
        )
        journal.append("text", 1, tag="t", text="it is tellNobody42, or hf_abcdefghijklmnop12345678")
        journal.append("table", 1, name="t", columns=["a"], rows=[["sk-abcdEFGH1234567890abcd"]])
        journal.append("metrics", 1, metrics={"reward/tellNobody42": 1.0, "loss": 2.0})
        journal.append("metrics", 2, metrics={"loss": 2.0}, source="tellNobody42")
        journal.append("note", text="see https://me:tellNobody42@host/", level="info")
    content = b"".join(path.read_bytes() for path in (tmp_path / "journal").glob("*.jsonl"))
    for secret in (b"tellNobody42", b"hf_plain", b"hf_abc", b"sk-abcd"):
        assert secret not in content
    records = read(tmp_path)
    assert records[0].fields["config"] == {"trainer": {"hf_token": "***", "max_tokens": 5}, "path": "***"}
    assert records[3].fields == {"metrics": {"reward/***": 1.0, "loss": 2.0}}
    assert records[4].fields == {"metrics": {"loss": 2.0}, "source": "***"}


def test_metrics_under_keys_that_sound_secret_keep_their_numbers(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"auth": 1.0, "reward/token": 0.5})
    assert read(tmp_path)[0].fields == {"metrics": {"auth": 1.0, "reward/token": 0.5}}


def test_the_background_syncs_what_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    threads = set()
    real = os.fsync

    def watched(descriptor: int) -> None:
        real(descriptor)
        threads.add(threading.current_thread().name)
        synced.set()

    monkeypatch.setattr(os, "fsync", watched)
    with JournalWriter(tmp_path, attempt=1, sync_seconds=0.01) as journal:
        assert synced.wait(10)
        synced.clear()
        journal.append("metrics", 1, metrics={"a": 1.0})
        assert synced.wait(10)
        assert threads == {"verl-journal-sync"}


def test_a_failed_sync_in_the_background_is_told_at_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def failing(descriptor: int) -> None:
        if threading.current_thread().name == "verl-journal-sync":
            failed.set()
        raise OSError(5, "Input/output error")

    with JournalWriter(tmp_path, attempt=1, sync_seconds=0.01) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.sync()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            journal.append("metrics", 2, metrics={"a": 1.0})
            assert failed.wait(10)
            with pytest.raises(JournalError, match="Cannot sync the journal"):
                append_until_told(journal, failed)
    records = read(tmp_path)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


def append_until_told(journal: JournalWriter, failed: threading.Event) -> None:
    for step in range(3, 1000):
        failed.clear()
        journal.append("metrics", step, metrics={"a": 1.0})
        failed.wait(10)


def test_sync_returns_after_the_files_were_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (real(descriptor), synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    )
    with JournalWriter(tmp_path, attempt=1, sync_seconds=1000, rotate_bytes=150) as journal:
        for step in range(4):
            journal.append("metrics", step, metrics={"a": 1.0})
        journal.sync()
        names = {Path(path).name for path in synced}
        assert {"metrics-rank0.jsonl", "metrics-rank0.1.jsonl", "metrics-rank0.3.jsonl", "journal"} <= names


def test_files_are_not_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with JournalWriter(tmp_path, attempt=1, rotate_bytes=200, sync_seconds=0.001) as journal:
            for step in range(20):
                journal.append("metrics", step, metrics={"a": 1.0})
                journal.sync()
        list(JournalReader(tmp_path).records())
        JournalReader(tmp_path).follow()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_writer_that_cannot_open_gives_its_lock_back(tmp_path: Path) -> None:
    in_the_way = tmp_path / "journal" / "events-rank0.jsonl"
    in_the_way.mkdir(parents=True)
    with pytest.raises(JournalError, match=r"Cannot open the journal at .*events-rank0"):
        JournalWriter(tmp_path, attempt=1)
    with pytest.raises(JournalError, match=r"Cannot read the journal at .*events-rank0"):
        list(JournalReader(tmp_path).records())
    in_the_way.rmdir()
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("note", text="x", level="info")


def test_a_journal_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalError, match=r"Cannot create the journal folder at .*file/journal"):
        JournalWriter(tmp_path / "file", attempt=1)


def test_a_close_that_cannot_sync_closes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    journal = JournalWriter(tmp_path, attempt=1)
    journal.append("metrics", 1, metrics={"a": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(JournalError, match=r"Cannot sync the journal at .*: input/output error"):
            journal.close()
    with JournalWriter(tmp_path, attempt=2) as again:
        assert again.next_seq == 2


def test_a_file_system_without_fsync_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unsupported)
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.sync()
    assert len(read(tmp_path)) == 1


def test_ever_new_keys_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.journal.writer._MAX_CHECKED_KEYS", 10)
    with JournalWriter(tmp_path, attempt=1) as journal:
        for step in range(50):
            journal.append("metrics", step, metrics={f"key/{step}": 1.0, "source/hf_abcdefghijklmnop12345678": 2.0})
    assert read(tmp_path)[49].fields == {"metrics": {"key/49": 1.0, "source/***": 2.0}}


def test_a_journal_deleted_under_the_writer_is_noticed(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, attempt=1)
    journal.append("metrics", 1, metrics={"a": 1.0})
    journal.sync()
    shutil.rmtree(tmp_path / "journal")
    journal.append("metrics", 2, metrics={"a": 1.0})
    with pytest.raises(JournalError, match="was deleted while it is being written"):
        journal.sync()
    with pytest.raises(JournalError, match="was deleted"):
        journal.close()


@pytest.mark.parametrize("step", [2**63, -(2**63), 10**5000], ids=["above", "below", "far above"])
def test_a_step_beyond_64_bits_is_refused_before_it_is_written(tmp_path: Path, step: int) -> None:
    with JournalWriter(tmp_path, attempt=1) as journal:
        with pytest.raises(ValueError, match="is too large: a step has 64 bits"):
            journal.append("metrics", step, metrics={"loss/policy_loss": 1.0})
        journal.append("metrics", 2**63 - 1, metrics={"loss/policy_loss": 1.0})
    reader = JournalReader(tmp_path)
    assert [record.step for record in reader.records()] == [2**63 - 1]
