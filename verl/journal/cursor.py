"""Where a follower of the journal stands, as a value that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import orjson

from verl.errors import JournalError


class Position(NamedTuple):
    """Start of the first line that was not read yet: segment number, byte offset in it."""

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """Positions by stream name; `Cursor()` is the beginning of every journal.

    Example: `Cursor({"metrics-rank0": Position(1, 5120), "events-rank0": Position(0, 88)})`, as JSON
    `{"metrics-rank0":[1,5120],"events-rank0":[0,88]}`.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)

    def to_json(self) -> str:
        return orjson.dumps({name: list(position) for name, position in self.positions.items()}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Cursor written by `to_json`.

        Raises:
            JournalError: The text is no cursor.
        """
        try:
            raw = orjson.loads(text)
            positions = {str(name): Position(*map(int, position)) for name, position in raw.items()}
            if any(min(position) < 0 for position in positions.values()):
                raise ValueError("a number is negative")
        except (ValueError, TypeError, AttributeError) as error:
            raise JournalError(
                f"Not a journal cursor: {error}. One looks like this: "
                f'{{"metrics-rank0": [0, 1024]}}; without a cursor, reading begins at the start.'
            ) from None
        return cls(positions)
