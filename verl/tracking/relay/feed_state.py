"""How far a tracker has been fed: `relay/<tracker>.json`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import orjson

from verl.config.secrets import mask_text
from verl.journal import Cursor, Record, RunDirectory
from verl.journal.cursor import Position
from verl.journal.files import replace_file
from verl.tracking.logger import Omission

FEEDING, RETRYING, BROKEN = "feeding", "retrying", "broken"
_VERSION = 1
_MOST_SKIPPED_KEPT = 100
_MOST_NAMES_KEPT = 200


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that a tracker refused again and again while it took others.

    Attributes:
        stream: Journal stream of the record. segment: Its file in the stream. offset: About where it begins there.
        seq, kind, step: Which record it is.
        reason: What the tracker said.
    """

    stream: str
    segment: int
    offset: int
    seq: int
    kind: str
    step: int | None
    reason: str


@dataclass(slots=True)
class FeedState:
    """State of one tracker's feed.

    Attributes:
        tracker: Its name.
        attempt: Attempt that it is or was last fed for.
        status: "feeding", the status it was finished with, "retrying" after a failure, or "broken" while it cannot be
            opened.
        cursor: Where reading goes on; everything before it was delivered and flushed.
        seq: Number of the last record delivered.
        delivered: Records given to the tracker so far.
        failures: Failed tries. last_error: Why the last one failed.
        outages: How often it began to fail.
        branch: How often it was begun anew in a new remote run. last_step: Highest step that it was, or was about to
            be, given and that no rewind took back.
        skipped: Records left out for good (the first hundred). num_skipped: How many there are.
        renamed: Names that it spells in another way. omissions: What it left out, by name, and why.
        where: Command or address to look at it.
        own: What the tracker wants back at its next `open`.
    """

    tracker: str
    attempt: int = 1
    status: str = FEEDING
    cursor: Cursor = field(default_factory=Cursor)
    seq: int = 0
    delivered: int = 0
    failures: int = 0
    last_error: str = ""
    outages: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    num_skipped: int = 0
    branch: int = 0
    last_step: int | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    omissions: dict[str, Omission] = field(default_factory=dict)
    where: str = ""
    own: dict[str, Any] = field(default_factory=dict)

    def fail(self, what: str, error: BaseException, status: str) -> None:
        """Count a failure, and an outage if it is the first one in a row."""
        self.failures += 1
        self.outages += self.status not in (RETRYING, BROKEN)
        self.status = status
        self.last_error = mask_text(f"{what}: {type(error).__name__}: {error}")[:2000]

    def skip(self, record: Record, start: Position, stream: str, reason: str) -> None:
        """Note a record that is left out."""
        self.num_skipped += 1
        if len(self.skipped) < _MOST_SKIPPED_KEPT:
            self.skipped.append(Skipped(stream, *start, record.seq, record.kind, record.step, mask_text(reason)[:500]))

    def omit(self, omissions: Mapping[str, Omission]) -> None:
        """Add what a tracker left out."""
        for name, omission in omissions.items():
            known = self.omissions.get(name)
            if known is not None:
                self.omissions[name] = replace(omission, count=known.count + omission.count)
            elif len(self.omissions) < _MOST_NAMES_KEPT:
                self.omissions[name] = replace(omission, reason=mask_text(omission.reason)[:500])

    def forget(self, *, branch: int) -> None:
        """Begin again with nothing delivered, in the same remote run or that of a new branch."""
        self.cursor, self.own = Cursor(), {}
        self.seq = self.delivered = self.num_skipped = 0
        self.skipped, self.omissions, self.renamed = [], {}, {}
        self.branch = branch
        self.last_step = None

    def save(self, path: Path, *, is_durable: bool = False) -> None:
        """Replace the file atomically.

        Args:
            path: The file.
            is_durable: Also through a power loss. A state that is a little older than what was delivered does no harm,
                one that has forgotten its branch does.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        raw = {"v": _VERSION, **asdict(self), "cursor": orjson.loads(self.cursor.to_json())}
        try:
            content = orjson.dumps(raw, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str)
        except TypeError:  # a file name or text that is no UTF-8
            content = json.dumps(raw, indent=2, default=str).encode()
        if is_durable:
            replace_file(path, content)
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, tracker: str) -> Self:
        """State in a file; a new one if there is none.

        Raises:
            ValueError: The file is damaged.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls(tracker)
        try:
            raw = json.loads(content)
            cursor = Cursor.from_json(orjson.dumps(raw.pop("cursor")))
            skipped = [Skipped(**item) for item in raw.pop("skipped", [])]
            omissions = {name: Omission(**item) for name, item in raw.pop("omissions", {}).items()}
            known = {field.name for field in fields(cls)}  # a newer version may have more
            plain = {name: value for name, value in raw.items() if name in known}
            return cls(**{**plain, "cursor": cursor, "skipped": skipped, "omissions": omissions})
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise ValueError(
                f"{path} is damaged ({error}). Move it away to build this tracker anew from the journal"
            ) from None


def state_path(directory: RunDirectory, tracker: str) -> Path:
    """File of a tracker's state; any name becomes a file name."""
    return directory.relay_cursor(re.sub(r"[^\w.-]", "_", tracker))


def read_states(directory: Path) -> list[FeedState]:
    """States of all trackers of a run that can be read, by name."""
    states = []
    for path in (directory / "relay").glob("*.json"):
        try:
            states.append(FeedState.load(path, path.stem))
        except ValueError as error:
            states.append(FeedState(path.stem, status=BROKEN, failures=1, last_error=str(error)))
    return sorted(states, key=lambda state: state.tracker)
