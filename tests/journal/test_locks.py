from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from verl.errors import JournalError
from verl.journal.locks import OwnedLock, short_lock
from verl.journal.processes import ProcessIdentity

HOLD = """
import os, sys, time
from pathlib import Path
from verl.journal.locks import OwnedLock
lock = OwnedLock(Path(sys.argv[1]), "uses")
lock.acquire()
child = os.fork() if "--orphan" in sys.argv else None  # a child keeps a copy of the lock
if child != 0:
    print("held" if child is None else child, flush=True)
time.sleep(600)
"""


def lock_at(folder: Path) -> OwnedLock:
    return OwnedLock(folder / "a.lock", "uses")


def hold(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / "a.lock"), *flags], stdout=subprocess.PIPE, text=True
    )


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def write_owner(folder: Path, pid: int, host: str) -> None:
    (folder / "a.lock").write_bytes(orjson.dumps({"pid": pid, "host": host, "since": time.time()}))


def test_a_lock_is_exclusive_until_it_is_released(tmp_path: Path) -> None:
    first, second = lock_at(tmp_path), lock_at(tmp_path)
    first.acquire()
    assert first.is_held
    with pytest.raises(JournalError, match="This same process"):
        second.acquire()
    assert not second.is_held
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    process = hold(tmp_path)
    try:
        assert next_line(process) == "held"
        message = rf"Process {process.pid} on {socket.gethostname()} already uses"
        with pytest.raises(JournalError, match=message):
            lock_at(tmp_path).acquire()
    finally:
        end(process)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert next_line(process) == "held"
    end(process)
    lock = lock_at(tmp_path)
    lock.acquire()
    lock.release()


def test_a_lock_held_only_by_the_orphan_of_a_dead_owner_is_taken_over(tmp_path: Path) -> None:
    process = hold(tmp_path, "--orphan")
    orphan = int(next_line(process))
    try:
        with pytest.raises(JournalError, match=f"Process {process.pid}"):
            lock_at(tmp_path).acquire()
        process.kill()
        process.wait()
        lock = lock_at(tmp_path)
        lock.acquire()
        with pytest.raises(JournalError, match="This same process"):  # the new file excludes others as the old did
            lock_at(tmp_path).acquire()
        lock.release()
    finally:
        os.kill(orphan, signal.SIGKILL)
        end(process)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # from 3.12 on: forking beside threads
def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = lock_at(tmp_path)
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        held = lock.is_held
        lock.release()
        os._exit(1 if held else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lock.is_held
    with pytest.raises(JournalError, match="This same process"):
        lock_at(tmp_path).acquire()
    lock.release()


def test_an_unreadable_owner_is_another_process(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "a.lock", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"\x00garbage")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(JournalError, match="Another process already uses"):
        lock_at(tmp_path).acquire()
    os.close(descriptor)
    lock = lock_at(tmp_path)
    lock.acquire()
    lock.release()


@pytest.fixture
def _no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)


@pytest.mark.usefixtures("_no_flock")
def test_without_flock_the_name_of_a_living_owner_protects(tmp_path: Path) -> None:
    lock = lock_at(tmp_path)
    lock.acquire()
    with pytest.raises(JournalError, match="This same process"):
        lock_at(tmp_path).acquire()
    lock.release()
    lock.acquire()
    lock.release()


@pytest.mark.usefixtures("_no_flock")
def test_without_flock_a_dead_owner_or_one_elsewhere_does_not_block(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for pid, host in ((process.pid, socket.gethostname()), (1, "elsewhere")):
        write_owner(tmp_path, pid, host)
        lock = lock_at(tmp_path)
        lock.acquire()
        lock.release()


def test_a_short_lock_waits_for_the_other(tmp_path: Path) -> None:
    script = "import sys\nfrom pathlib import Path\nfrom verl.journal.locks import short_lock\n"
    script += "print('waiting', flush=True)\nwith short_lock(Path(sys.argv[1])):\n    print('in', flush=True)\n"
    with short_lock(tmp_path):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert next_line(process) == "waiting"
        assert process.poll() is None
    assert next_line(process) == "in"
    assert process.wait() == 0
    end(process)


def test_a_short_lock_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.journal.locks._GUARD_SECONDS", 0.02)
    with (
        short_lock(tmp_path),
        pytest.raises(JournalError, match="has been locked by another process"),
        short_lock(tmp_path),
    ):
        pass


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE, text=True)
    assert next_line(process) == "1"
    identity = ProcessIdentity(process.pid, socket.gethostname(), time.time())
    deadline = time.monotonic() + 20
    while not identity.is_dead() and time.monotonic() < deadline:
        os.sched_yield()
    assert identity.is_dead()
    end(process)


def test_the_asking_process_is_alive_here() -> None:
    current = ProcessIdentity.current()
    assert current.is_current()
    assert current.is_alive_here()
    assert not current.is_dead()
    assert not ProcessIdentity(current.pid, "elsewhere", current.since).is_alive_here()
    assert not ProcessIdentity(current.pid, "elsewhere", current.since).is_dead()


def test_a_lock_that_cannot_be_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = lock_at(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(JournalError, match="the disk is full"):
            lock.acquire()
    assert not lock.is_held
    other = lock_at(tmp_path)
    other.acquire()
    other.release()
