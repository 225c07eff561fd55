"""Where the console writes: the terminal itself, past the buffers and locks of `sys.stdout`.

A terminal or pipe that nobody reads blocks whoever writes to it. The console writes from a thread of its own,
and through a descriptor of its own: what blocks that thread holds no lock that the training thread, or Python
at its exit, would wait for.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class TerminalStream(io.TextIOBase):
    """Text straight to a duplicate of a file descriptor."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = os.dup(descriptor)

    def write(self, text: str, /) -> int:
        data = memoryview(text.encode("utf-8", "replace"))
        while data:
            data = data[os.write(self._descriptor, data) :]
        return len(text)

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def writable(self) -> bool:
        return True


def terminal_stream() -> TextIO:
    """Standard output for the console: the descriptor itself, or `sys.stdout` where somebody has replaced it."""
    replaced = sys.stdout is not sys.__stdout__
    if replaced or sys.stdout is None:
        return sys.stdout or io.StringIO()
    try:
        sys.stdout.flush()
        return TerminalStream(sys.stdout.fileno())  # type: ignore[return-value]
    except (OSError, ValueError):  # closed, or no real file
        return sys.stdout
