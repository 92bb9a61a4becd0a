"""Threads for the work that precedes an answer: templates, tokens, images, forms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from gptrs_serve.accounts import Ledger

THREADS: Final = 2
"""Of each kind of work. More would take the time of the engine, as libraries release the lock."""
Result = TypeVar("Result")


class Pool:
    """Runs one kind of work in few threads of its own, in the order in which it came.

    asyncio's own threads are shared by all kinds: six long texts would stop every template. Work
    whose task is cancelled is dropped if it has not begun. `run` belongs to one event loop.
    """

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._threads = ThreadPoolExecutor(THREADS, f"gptrs-{name}")
        self._ledger = ledger

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` gives, and raise its errors; EngineBusyError if too many wait."""
        self._ledger.begin()
        running = self._threads.submit(work)
        # Work that has begun counts to its end, also where nobody waits for it any more.
        running.add_done_callback(lambda _: self._ledger.end())
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """End the threads after the work that runs."""
        # Not awaited: a tokenizer in native code cannot be interrupted, and would hold up the end
        # of the server.
        self._threads.shutdown(wait=False, cancel_futures=True)
