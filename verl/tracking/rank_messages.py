"""What processes that write no records want to tell people, on its way to rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from verl.tracking.logger import AlertLevel

MAX_WAITING = 100
"""Messages that a process keeps for rank 0; it counts the others."""


class RankMessage(NamedTuple):
    """An alert, or a note if it has no title.

    Attributes:
        title, text: What people read.
        level: How grave it is.
    """

    title: str
    text: str
    level: AlertLevel


class RankMessages:
    """Messages of this process that wait, and the way into the records for those of others.

    Args:
        log: Logs a message, or keeps it for later where nothing can be logged.
    """

    def __init__(self, log: Callable[[RankMessage], None]) -> None:
        self._log = log
        self._waiting: list[RankMessage] = []
        self._num_dropped = 0

    def add(self, message: RankMessage) -> None:
        """Keep a message until it can be sent."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(message)
        else:
            self._num_dropped += 1

    def waiting(self) -> list[RankMessage]:
        """What is to be sent, with a last line about what was too much."""
        if not self._num_dropped:
            return list(self._waiting)
        return [*self._waiting, RankMessage("", f"{self._num_dropped} more messages were left out", "warning")]

    def clear(self) -> None:
        """Forget what waits: it was sent."""
        self._waiting.clear()
        self._num_dropped = 0

    def deliver(self, messages_by_rank: Sequence[Sequence[RankMessage]]) -> None:
        """Log the messages of all ranks; the same one of several ranks once, with their numbers."""
        ranks: dict[RankMessage, list[int]] = {}
        for rank, messages in enumerate(messages_by_rank):
            for message in messages:
                senders = ranks.setdefault(message, [])
                if rank not in senders:
                    senders.append(rank)
        for message, senders in ranks.items():
            self._log(message._replace(text=f"{_names(senders)}: {message.text}"))


def _names(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
