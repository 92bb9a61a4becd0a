"""Threads for the work before an answer: bodies, templates, tokenizing, images, forms."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import Struct

from gptrs_serve.accounts import Ledger
from gptrs_serve.problems import is_large

THREADS: Final = 2
"""Threads per kind of work. More would take time from the engine, as libraries release the GIL."""
_BYTES_PER_SECOND: Final = 1_000_000
"""A body queues as if it had arrived later by its size at this rate: about the time that a
conversation of very short messages takes."""
Result = TypeVar("Result")


class _Waiting(Struct, eq=False):
    """Work that waits for a thread, in the order of its turn."""

    turn: tuple[float, int]
    size: int
    """Bytes of a large body, 0 for a small one."""
    done: Future[Any]
    work: Callable[[], Any]

    def __lt__(self, other: _Waiting) -> bool:
        return self.turn < other.turn


class Pool:
    """Runs one kind of work in its own few threads; smaller bodies overtake larger ones.

    asyncio's default threads are shared by all kinds: six long texts would block every template.
    Work of large bodies leaves one thread to the small ones. Work whose task is cancelled is
    dropped if it has not started. `run` belongs to one event loop.
    """

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._threads = ThreadPoolExecutor(THREADS, f"gptrs-{name}")
        self._ledger = ledger
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._running = self._large = 0
        """Work in the threads, and how much of it is that of large bodies."""

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, or raise its error; EngineBusyError if too many wait."""
        size = self._ledger.begin()
        loop = asyncio.get_running_loop()
        done: Future[Result] = Future()
        self._count += 1
        # The size only delays: work that has waited long enough precedes any that arrives later.
        turn = time.monotonic() + size / _BYTES_PER_SECOND
        entry = _Waiting((turn, self._count), size, done, work)
        # Work that has started counts to its end, even if nobody waits for it any more.
        done.add_done_callback(lambda done: self._ended(done, size))
        heapq.heappush(self._waiting, entry)
        self._begin(loop)
        return await asyncio.wrap_future(done)

    async def prepared(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which reads the body: for a large one as of `run`.

        On the event loop, a body of 100,000 messages would keep all streams waiting for seconds.
        """
        return await self.run(work) if is_large() else work()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start waiting work while there are free threads."""
        passed: list[_Waiting] = []
        while self._waiting and self._running < THREADS:
            entry = heapq.heappop(self._waiting)
            if entry.size and self._large == THREADS - 1:
                passed.append(entry)
            elif entry.done.set_running_or_notify_cancel():
                self._running += 1
                self._large += bool(entry.size)
                running = self._threads.submit(_settle, entry)
                running.add_done_callback(lambda _, size=entry.size: self._free(loop, size))
        for entry in passed:
            heapq.heappush(self._waiting, entry)

    def _ended(self, done: Future[Any], size: int) -> None:
        """Count work no longer; a body whose client has gone is dropped at once."""
        self._ledger.end(size)
        if done.cancelled():  # by the event loop, in whose thread the list changes
            self._waiting = [each for each in self._waiting if each.done is not done]
            heapq.heapify(self._waiting)

    def _free(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """Give a thread to the next work; called by the thread."""

        def free() -> None:
            self._running -= 1
            self._large -= bool(size)
            self._begin(loop)
            if size > _BYTES_PER_SECOND and not any(each.size for each in self._waiting):
                with suppress(RuntimeError):  # the pool is closed
                    self._threads.submit(return_memory)

        with suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(free)

    def close(self) -> None:
        """End the threads after the running work."""
        # Not awaited: a tokenizer in native code cannot be interrupted, and would hold up the end
        # of the server.
        for entry in list(self._waiting):
            entry.done.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def return_memory() -> None:
    """Return freed memory to the system, which takes some milliseconds."""
    # glibc keeps what was freed between blocks in use: 70 MB of each SmolLM2-135M that was
    # unloaded, and 600 MB after forty kinds of bodies of 4 MB.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _settle(entry: _Waiting) -> None:
    """Give a future the result or the error of its work."""
    work, entry.work = entry.work, _nothing
    try:
        result = work()
    except BaseException as error:
        # The traceback keeps this frame and its caller's, which keep the entry, and it the future
        # of the error: without the work, that cycle keeps no body.
        del work
        entry.done.set_exception(error)
    else:
        entry.done.set_result(result)


def _nothing() -> None:
    """Stand for work that has been done."""
