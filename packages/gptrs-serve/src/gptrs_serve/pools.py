"""Threads for the work that precedes an answer: templates, tokens, images, forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from gptrs.errors import EngineBusyError

THREADS: Final = 2
"""Of each kind of work. More would take the time of the engine, as libraries release the lock."""
Result = TypeVar("Result")


class Pool:
    """Runs one kind of work in few threads of its own, in the order in which it came.

    asyncio's own threads are shared by all kinds: six long texts would stop every template. Work
    whose task is cancelled is dropped if it has not begun. `run` belongs to one event loop.
    """

    def __init__(self, name: str, most_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(THREADS, f"gptrs-{name}")
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self.waiting = 0
        """How many pieces of work run or wait."""

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` gives, and raise its errors; EngineBusyError if too many wait."""
        if self.waiting >= self._most_waiting:
            raise EngineBusyError(
                f"{self.waiting} requests are prepared or wait for that, which is the most allowed",
                hint="try again later",
            )
        self._add(1)
        running = self._threads.submit(work)
        running.add_done_callback(lambda _: self._add(-1))
        return await asyncio.wrap_future(running)

    def _add(self, count: int) -> None:
        with self._lock:  # work ends in its thread
            self.waiting += count

    def close(self) -> None:
        """End the threads after the work that runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
