"""A journal whose writer is killed at any moment keeps everything it acknowledged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from verl.errors import JournalError
from verl.journal import Cursor, JournalReader, JournalWriter, Record

# Forks a writer whenever it is told to (much faster than starting Python each time). The writer tells
# its process id first, then acknowledges each number after its `append` has returned.
NURSERY = """
import os, random, sys
from verl.journal import Draft, JournalWriter

def write_for_ever(folder, seed):
    os.write(1, b"pid %d\\n" % os.getpid())
    rng = random.Random(seed)
    journal = JournalWriter(folder, attempt=seed, rotate_bytes=rng.choice([3000, 300_000, 10**8]), sync_seconds=0.001)
    step = 0
    while True:
        step += 1
        choice = rng.random()
        if choice < 0.6:
            records = [journal.append("metrics", step, metrics={"a": rng.random(), "b": float("nan")})]
        elif choice < 0.8:
            records = [journal.append("text", step, tag="t", text="\\u4e2d" * rng.choice([1, 100, 300_000]))]
        elif choice < 0.95:
            note = Draft("note", step, {"text": "x" * 500, "level": "info"})
            records = journal.append_many([note, Draft("metrics", step, {"metrics": {"c": 1.0}})] * 5)
        else:
            journal.sync()
            records = []
        for record in records:
            os.write(1, b"%d\\n" % record.seq)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        write_for_ever(sys.argv[1], int(line))
    os.waitpid(pid, 0)
    os.write(1, b"ended\\n")
"""


class Nursery:
    """Starts writers and kills them."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.commands, self.answers = self.process.stdin, self.process.stdout
        self.unread = b""

    def lines(self) -> Iterator[bytes]:
        while True:
            while b"\n" in self.unread:
                line, _, self.unread = self.unread.partition(b"\n")
                yield line
            block = os.read(self.answers.fileno(), 65536)
            assert block, "the nursery died"
            self.unread += block

    def write_until(self, seed: int, num_acknowledged: int) -> list[int]:
        """Numbers that a writer acknowledged before it was killed after so many."""
        self.commands.write(b"%d\n" % seed)
        acknowledged: list[int] = []
        pid = 0
        for line in self.lines():
            if line.startswith(b"pid"):
                pid = int(line.split()[1])
                if num_acknowledged == 0:
                    os.kill(pid, signal.SIGKILL)
            elif line == b"ended":
                assert len(acknowledged) >= num_acknowledged, "the writer died by itself"
                return acknowledged
            else:
                acknowledged.append(int(line))
                if len(acknowledged) == num_acknowledged:
                    os.kill(pid, signal.SIGKILL)
        raise AssertionError

    def close(self) -> None:
        self.commands.close()
        self.answers.close()
        self.process.wait()


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    opened = Nursery(folder)
    try:
        yield opened
    finally:
        opened.close()


def test_nothing_acknowledged_is_lost_in_fifty_kills(tmp_path: Path) -> None:
    rng = random.Random(0)
    acknowledged: set[int] = set()
    followed: list[Record] = []
    reader, cursor = JournalReader(tmp_path), Cursor()
    with nursery(tmp_path) as writers:
        for seed in range(1, 51):
            acknowledged.update(writers.write_until(seed, rng.choice([0, 1, 2, 5, 20, 60])))
            while True:
                records, cursor = reader.follow(cursor)
                if not records:
                    break
                followed += records
            assert acknowledged <= {record.seq for record in followed}
    everything = list(JournalReader(tmp_path).records())
    assert reader.problems == []
    assert [record.seq for record in everything] == list(range(1, len(everything) + 1))
    assert [record.seq for record in followed] == [record.seq for record in everything]
    with JournalWriter(tmp_path, attempt=51) as journal:
        assert journal.next_seq >= everything[-1].seq + 1
    attempts = [record.attempt for record in everything]
    assert attempts == sorted(attempts)
    assert len(set(attempts)) > 30


def test_a_killed_writer_is_followed_by_the_next_and_two_are_never_at_work(tmp_path: Path) -> None:
    with nursery(tmp_path) as writers:
        writers.commands.write(b"1\n")
        lines = writers.lines()
        pid = int(next(lines).split()[1])
        assert next(lines) == b"1"
        with pytest.raises(JournalError, match=f"Process {pid} on .* already writes the journal files of 'rank0'"):
            JournalWriter(tmp_path, attempt=2)
        os.kill(pid, signal.SIGKILL)
        while next(lines) != b"ended":
            pass
        with JournalWriter(tmp_path, attempt=2) as journal:
            journal.append("note", text="I am next", level="info")
    assert list(JournalReader(tmp_path).records())[-1].fields["text"] == "I am next"


OPEN_ONCE = """
import sys
from verl.errors import JournalError
from verl.journal import JournalWriter
print("ready", flush=True)
sys.stdin.readline()
try:
    journal = JournalWriter(sys.argv[1], attempt=1)
except JournalError:
    print("refused", flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
"""


def test_of_several_writers_that_open_at_once_one_wins(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_ONCE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]

    def tell_and_hear(tell: bool) -> list[str]:
        for process in processes:
            assert process.stdin is not None
            if tell:
                process.stdin.write("go\n")
                process.stdin.flush()
        return [process.stdout.readline().strip() for process in processes if process.stdout is not None]

    assert tell_and_hear(tell=False) == ["ready"] * 4
    assert sorted(tell_and_hear(tell=True)) == ["refused", "refused", "refused", "won"]
    for process in processes:
        process.communicate("end\n")


def test_a_reader_beside_a_fast_writer_sees_everything_once_and_in_order(tmp_path: Path) -> None:
    reader, cursor, seen = JournalReader(tmp_path), Cursor(), []
    with nursery(tmp_path) as writers:
        writers.commands.write(b"7\n")
        lines = writers.lines()
        pid = int(next(lines).split()[1])
        while len(seen) < 600:
            records, cursor = reader.follow(cursor, max_bytes=50_000)
            seen += [record.seq for record in records]
            assert next(lines) != b"ended", "the writer died by itself"
        os.kill(pid, signal.SIGKILL)
    assert seen == list(range(1, len(seen) + 1))
    assert reader.problems == []


def test_a_signal_handler_may_append_while_its_thread_appends(tmp_path: Path) -> None:
    """A handler of SIGTERM writes the last words, wherever the training thread is just then."""
    handled = []

    def handle(number: int, frame: object) -> None:
        handled.append(journal.append("note", text="last words", level="info").seq)
        journal.sync()

    previous = signal.signal(signal.SIGVTALRM, handle)
    try:
        with JournalWriter(tmp_path, attempt=1, sync_seconds=0.001) as journal:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
            while len(handled) < 100:
                journal.append("metrics", 1, metrics={"a": 1.0})
                journal.append("text", 1, tag="t", text="x" * 1000)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            last = journal.next_seq - 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    reader = JournalReader(tmp_path)
    records = list(reader.records())
    assert sorted(record.seq for record in records) == list(range(1, last + 1))
    assert sum(record.kind == "note" for record in records) == len(handled)
    assert reader.problems == []


def test_an_interrupted_append_leaves_a_usable_journal(tmp_path: Path) -> None:
    interrupts = 0

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGVTALRM, handle)
    acknowledged = []
    try:
        with JournalWriter(tmp_path, attempt=1, rotate_bytes=5000) as journal:
            while interrupts < 40:
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                    while True:
                        acknowledged.append(journal.append("metrics", 1, metrics={"a": 1.0}).seq)
                except KeyboardInterrupt:
                    interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    reader = JournalReader(tmp_path)
    read = [record.seq for record in reader.records()]
    assert set(acknowledged) <= set(read)
    assert read == sorted(set(read))
    assert reader.problems == []
