"""Threads for the work before an answer: templates, tokenizing, images, forms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from gptrs_serve.accounts import Ledger

THREADS: Final = 2
"""Threads per kind of work. More would take time from the engine, as libraries release the GIL."""
Result = TypeVar("Result")


class Pool:
    """Runs one kind of work in its own few threads, in order of arrival.

    asyncio's default threads are shared by all kinds: six long texts would block every template.
    Work whose task is cancelled is dropped if it has not started. `run` belongs to one event loop.
    """

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._threads = ThreadPoolExecutor(THREADS, f"gptrs-{name}")
        self._ledger = ledger

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, or raise its error; EngineBusyError if too many wait."""
        self._ledger.begin()
        running = self._threads.submit(work)
        # Work that has started counts to its end, even if nobody waits for it any more.
        running.add_done_callback(lambda _: self._ledger.end())
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """End the threads after the running work."""
        # Not awaited: a tokenizer in native code cannot be interrupted, and would hold up the end
        # of the server.
        self._threads.shutdown(wait=False, cancel_futures=True)
