"""Look now and then how the trackers fare, and say each new failure once; never on the training thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from verl.errors import JournalError

log = logging.getLogger("verl.tracking")

CHECK_SECONDS = 5.0
LONGEST_STOP_SECONDS = 1.0


class TrackerWatch:
    """A thread that asks for news and passes them on.

    Args:
        news: Gives what is new, in sentences.
        tell: Takes a sentence.
        interval: Seconds between two looks.
    """

    def __init__(
        self, news: Callable[[], list[str]], tell: Callable[[str], None], interval: float = CHECK_SECONDS
    ) -> None:
        self._news = news
        self._tell = tell
        self._interval = interval
        self._is_left_alone = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="verl-tracker-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; a look that hangs, such as on a disk that is away, is left alone, and tells nothing afterwards."""
        self._stop.set()
        self._thread.join(LONGEST_STOP_SECONDS)
        self._is_left_alone = True

    def _work(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                for sentence in self._news():
                    if self._is_left_alone:
                        return
                    self._tell(sentence)
            except (JournalError, OSError) as error:  # a full disk: the training thread says so, too
                log.warning("cannot look after the trackers: %s", error)
