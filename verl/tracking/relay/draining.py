"""Bring trackers up to the journal's end, for a run that nobody feeds any more."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from verl.errors import JournalError
from verl.journal import JournalReader, Kind, RunDirectory
from verl.tracking.relay.feed import Feed, FeedSource
from verl.tracking.relay.feed_state import FeedState, state_path
from verl.tracking.relay.relay import DRAIN_SECONDS
from verl.tracking.relay.relay_process import start_relay
from verl.tracking.table import check_tracker, proxies_of_environment

_LOOK_SECONDS = 0.1
_END_SECONDS = 5.0
_LOCK_SECONDS = 2.0


def drain(
    directory: RunDirectory,
    trackers: Sequence[str],
    seconds: float = DRAIN_SECONDS,
    *,
    is_fresh: bool = False,
    proxies: Mapping[str, str] | None = None,
    watch: Callable[[], object] = lambda: None,
) -> list[FeedState]:
    """Deliver to trackers what they lack, by a relay as in training; again gives nothing twice.

    Args:
        directory: The run.
        trackers: Names.
        seconds: How long to go on trying those that fail.
        is_fresh: Build each tracker anew, in a remote run of its own, from the canonical view.
        proxies: Proxies for single trackers, by their names; nothing = those of the environment.
        watch: Called a few times a second, such as to show the states (`feed_state.read_states`).

    Returns:
        Their states: `status` is that of the run, or "feeding" for a run without an end, if one is complete.

    Raises:
        JournalError: Another process feeds one of them.
        TrackerError: A name is unknown.
        ValueError: The stored state of one is damaged.
    """
    opened = [record.fields.get("total_steps") for record in JournalReader(directory).records({Kind.RUN})]
    total_steps = opened[-1] if opened else None
    source = FeedSource(directory, directory.info.last_attempt, total_steps, proxies or proxies_of_environment())
    for name in trackers:
        check_tracker(name)
    _prepare([Feed.by_name(name, source) for name in trackers], is_fresh)
    relay = start_relay(source, trackers, "--drain")
    deadline = time.monotonic() + seconds
    try:
        while relay.poll() is None and time.monotonic() < deadline:
            watch()
            time.sleep(_LOOK_SECONDS)
    finally:
        _end(relay)
    watch()
    return [FeedState.load(state_path(directory, name), name) for name in trackers]


def _prepare(feeds: Sequence[Feed], is_fresh: bool) -> None:
    """All or none: one that is fed by others must be known before anything is begun anew."""
    with ExitStack() as locked:
        for feed in feeds:
            _lock(feed)
            locked.callback(feed.leave)
        if is_fresh:
            for feed in feeds:
                feed.begin_anew()


def _lock(feed: Feed) -> None:
    """Wait a moment for the feeder of a relay that was just ended."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return feed.lock()
        except JournalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def _end(relay: subprocess.Popen[bytes]) -> None:
    """It ends its feeders; if it cannot, they notice that it is gone."""
    relay.terminate()
    try:
        relay.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        relay.kill()
        relay.wait()
