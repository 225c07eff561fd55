"""Running coroutines from synchronous code, also where an event loop is running already (a notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class CoroutineRunner:
    """One event loop for the life of a trainer.

    Coroutines run in the calling thread, where signals and debuggers work; only if that thread has a running loop
    of its own (a notebook) they run in another one.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verl-coroutines") if _has_running_loop() else None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Waits for the coroutine and gives its result, or raises what it raised."""
        if self._thread is None:
            return self._runner.run(coroutine)
        return self._thread.submit(self._runner.run, coroutine).result()

    def close(self) -> None:
        """Ends the loop and its thread."""
        if self._thread is None:
            self._runner.close()
            return
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
