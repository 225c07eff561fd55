"""The look after trackers: what is new is told, and the end of a run does not wait for a disk that hangs."""

from __future__ import annotations

import threading
import time

from verl.errors import JournalError
from verl.tracking.tracker_watch import TrackerWatch


def test_news_are_told_until_the_watch_is_stopped() -> None:
    news = iter([["one", "two"], []])
    told: list[str] = []
    has_looked = threading.Event()

    def look() -> list[str]:
        found = next(news, None)
        if found is None:
            has_looked.set()
            return []
        return found

    watch = TrackerWatch(look, told.append, 0.01)
    assert has_looked.wait(20)
    watch.stop()
    assert told == ["one", "two"]


def test_a_look_that_hangs_neither_holds_up_the_end_nor_speaks_after_it() -> None:
    is_looking, release, has_ended = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    def hangs() -> list[str]:
        is_looking.set()
        release.wait(60)
        has_ended.set()
        return ["too late"]

    watch = TrackerWatch(hangs, told.append, 0.01)
    assert is_looking.wait(20)
    begun = time.monotonic()
    watch.stop()
    assert time.monotonic() - begun < 10
    release.set()
    assert has_ended.wait(20)
    watch._thread.join(20)
    assert told == []


def test_what_a_look_finds_while_the_watch_is_being_stopped_is_told() -> None:
    is_looking = threading.Event()
    told: list[str] = []

    def slow() -> list[str]:
        is_looking.set()
        time.sleep(0.1)
        return ["in time"]

    watch = TrackerWatch(slow, told.append, 0.01)
    assert is_looking.wait(20)
    watch.stop()
    assert told == ["in time"]


def test_a_journal_that_cannot_be_written_does_not_end_the_watch() -> None:
    looks = threading.Semaphore(0)

    def full(sentence: str) -> None:
        looks.release()
        raise JournalError("no space left on device")

    watch = TrackerWatch(lambda: ["failing"], full, 0.01)
    assert looks.acquire(timeout=20)
    assert looks.acquire(timeout=20)
    watch.stop()
