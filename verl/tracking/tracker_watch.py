"""Look now and then how the trackers fare, and say each new failure once; never on the training thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from verl.errors import JournalError

log = logging.getLogger("verl.tracking")

CHECK_SECONDS = 5.0


class TrackerWatch:
    """A thread that asks for news and passes them on.

    Args:
        news: Gives what is new, in sentences.
        tell: Takes a sentence.
    """

    def __init__(self, news: Callable[[], list[str]], tell: Callable[[str], None]) -> None:
        self._news = news
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="verl-tracker-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; nothing is told any more when this returns."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(CHECK_SECONDS):
            try:
                for sentence in self._news():
                    self._tell(sentence)
            except (JournalError, OSError) as error:  # a full disk: the training thread says so, too
                log.warning("cannot look after the trackers: %s", error)
