"""A full disk stops an append, loses nothing, and is no reason to start anew."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl.errors import JournalError
from verl.journal import Draft, JournalReader, JournalWriter, RunDirectory


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"may not mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """Takes all free blocks; what is left is the rest of the last block of each file."""
    path = place / "ballast"
    space = os.statvfs(place)
    path.write_bytes(b"x" * (space.f_bavail * space.f_frsize))
    assert os.statvfs(place).f_bavail == 0
    return path


def append_until_full(journal: JournalWriter, text: str) -> tuple[int, JournalError]:
    number = 0
    while True:
        try:
            journal.append("text", number, tag="t", text=text)
        except JournalError as error:
            return number, error
        number += 1


def test_a_full_disk_keeps_everything_and_lets_the_append_be_repeated(small_disk: Path) -> None:
    run = small_disk / "run"
    with JournalWriter(run, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        ballast = fill(small_disk)
        appended, error = append_until_full(journal, "x" * 700)
        assert error.errno == errno.ENOSPC
        assert str(run / "journal") in str(error)
        assert "the disk is full" in str(error)
        assert "Free some space" in str(error)
        assert "MiB free of 1 MiB" in str(error)
        reader = JournalReader(run)
        assert [record.seq for record in reader.records()] == list(range(1, appended + 2))
        assert not (run / "journal" / "events-rank0.jsonl").read_bytes().endswith(b"x")
        ballast.unlink()
        assert journal.append("text", appended, tag="t", text="x" * 700).seq == appended + 2
        journal.append("metrics", 2, metrics={"a": 2.0})
    records = list(JournalReader(run).records())
    assert [record.seq for record in records] == list(range(1, appended + 4))
    assert reader.problems == []


def test_a_torn_tail_on_a_full_disk_can_be_repaired_later(small_disk: Path) -> None:
    run = small_disk / "run"
    with JournalWriter(run, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"a": 1.0})
        journal.append("text", 1, tag="t", text="x" * (4096 - 90))
    with (run / "journal" / "metrics-rank0.jsonl").open("ab") as file:
        file.write(b'{"v":1')
    ballast = fill(small_disk)
    with pytest.raises(JournalError, match="the disk is full"):
        JournalWriter(run, attempt=2)
    ballast.unlink()
    with JournalWriter(run, attempt=2) as journal:
        journal.append("metrics", 2, metrics={"a": 2.0})
    reader = JournalReader(run)
    steps = [record.step for record in reader.records() if record.kind == "metrics"]
    assert (steps, reader.problems) == ([1, 2], [])


def test_a_batch_that_does_not_fit_leaves_nothing_in_either_stream(small_disk: Path) -> None:
    drafts = [Draft("note", 1, {"text": "small", "level": "info"}), Draft("metrics", 1, {"metrics": {"a": 1.0}})]
    too_much = [drafts[0], Draft("metrics", 2, {"metrics": {f"key/{n}": float(n) for n in range(2000)}})]
    with JournalWriter(small_disk, attempt=1) as journal:
        journal.append_many(drafts)
        ballast = fill(small_disk)
        with pytest.raises(JournalError, match="the disk is full"):
            journal.append_many(too_much)
        assert len(list(JournalReader(small_disk).records())) == 2
        ballast.unlink()
        assert [record.seq for record in journal.append_many(too_much)] == [3, 4]
    reader = JournalReader(small_disk)
    assert [record.seq for record in reader.records()] == [1, 2, 3, 4]
    assert reader.problems == []


def test_a_segment_that_cannot_be_begun_can_be_begun_later(small_disk: Path) -> None:
    with JournalWriter(small_disk, attempt=1, rotate_bytes=4096) as journal:
        journal.append("text", 1, tag="t", text="x" * 4000)
        ballast = fill(small_disk)
        with pytest.raises(JournalError, match="the disk is full"):
            journal.append("text", 2, tag="t", text="x" * 4000)
        ballast.unlink()
        journal.append("text", 2, tag="t", text="x" * 4000)
    assert [record.step for record in JournalReader(small_disk).records()] == [1, 2]


def test_run_json_survives_a_full_disk(small_disk: Path) -> None:
    run = RunDirectory.create(small_disk / "run", project="p", experiment="e")
    run.start_attempt()
    ballast = fill(small_disk)
    with pytest.raises(JournalError, match=r"Cannot write run\.json .* the disk is full"):
        run.set_tracker_id("wandb", id="x" * 20_000)
    assert run.info.trackers == {}
    ballast.unlink()
    run.finish_attempt("finished")
    assert run.status == "finished"
    assert sorted(path.name for path in run.path.iterdir()) == ["journal", "run.json"]


def test_a_read_only_disk_says_what_to_do(small_disk: Path) -> None:
    run = RunDirectory.create(small_disk / "run", project="p", experiment="e")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(JournalError, match=r"read-only file system\. Give write permission, or choose another folder"):
        RunDirectory.create(small_disk / "run", project="p", experiment="e")
    with pytest.raises(JournalError, match="read-only file system"):
        JournalWriter(run, attempt=1)
    assert RunDirectory.open(run.path).info.project == "p"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


def test_a_file_size_limit_is_named_and_leaves_whole_lines(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with JournalWriter(tmp_path, attempt=1) as journal:
            journal.append("metrics", 1, metrics={"a": 1.0})
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
            appended, error = append_until_full(journal, "x" * 700)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert error.errno == errno.EFBIG
            assert "the file size limit (ulimit -f) is reached" in str(error)
            assert appended > 5
            journal.append("text", appended, tag="t", text="x" * 700)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    reader = JournalReader(tmp_path)
    assert [record.seq for record in reader.records()] == list(range(1, appended + 3))
    assert reader.problems == []


FULL_AT_START = """
import resource, sys
from verl.errors import JournalError
from verl.journal import JournalWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    JournalWriter(sys.argv[1], attempt=1)
except JournalError as error:
    print(error)
"""


def test_a_disk_full_at_the_start_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FULL_AT_START, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "Cannot lock the run directory" in answer.stdout
    assert "Traceback" not in answer.stderr
