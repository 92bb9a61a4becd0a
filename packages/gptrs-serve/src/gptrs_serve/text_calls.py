"""Calls of models that read texts in one step: one at a time, joining texts of several clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec import Struct

from gptrs.errors import GptrsError, UsageError
from gptrs_serve.accounts import Ledger

MOST_TEXTS: Final = 256
"""Most texts of one call; longer requests take several, and others run in between."""
Result = TypeVar("Result")
Work = Callable[[Sequence[str]], Sequence[Any]]


class _WaitingTexts(Struct, frozen=True, eq=False):
    """Waiting texts. Calls with equal keys may be joined: their work treats texts alike."""

    key: Hashable
    texts: Sequence[str]
    work: Work
    result: asyncio.Future[Sequence[Any]]


class TextCalls:
    """A queue of calls that run one after another in its own thread.

    While a model is busy with one call, arriving calls with equal keys are joined:
    a batch costs less than its texts separately. All methods belong to one event loop.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[_WaitingTexts] = deque()
        self._thread = ThreadPoolExecutor(1, "gptrs-texts")
        self._running: asyncio.Task[None] | None = None

    async def run(
        self, key: Hashable, texts: Sequence[str], work: Callable[[Sequence[str]], Sequence[Result]]
    ) -> list[Result]:
        """Return the results of `work`, which may read texts of other calls of `key` as well.

        If this task is cancelled, waiting texts are dropped. EngineBusyError if there are too
        many requests; otherwise the error of `work` for these texts alone.
        """
        with self._counted():
            return await self._run(key, texts, work)

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work` once its turn comes; errors as of `run`."""
        with self._counted():
            return (await self._one(object(), [""], lambda _: [work()]))[0]

    @contextmanager
    def _counted(self) -> Generator[None]:
        size = self._ledger.begin()
        try:
            yield
        finally:
            self._ledger.end(size)

    async def _run(self, key: Hashable, texts: Sequence[str], work: Work) -> list[Any]:
        found: list[Any] = []
        for begin in range(0, max(1, len(texts)), MOST_TEXTS):
            part = texts[begin : begin + MOST_TEXTS]
            try:
                # An empty list is an error, which other texts would hide.
                found.extend(await self._one(key if part else object(), part, work))
            except UsageError:
                if not begin:
                    raise
                # Repeated with the texts before it, as errors name texts by their index.
                await self._one(object(), texts[: begin + MOST_TEXTS], work)
                raise
        return found

    async def _one(self, key: Hashable, texts: Sequence[str], work: Work) -> Sequence[Any]:
        call = _WaitingTexts(key, texts, work, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        # No lock: all of this runs on one event loop, and there is no await between the test and
        # the assignment.
        if self._running is None:
            self._running = asyncio.create_task(self._run_all())
        return await call.result

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._next_calls())
        finally:
            self._running = None

    def _next_calls(self) -> list[_WaitingTexts]:
        """Take the oldest call, and others with its key up to the most texts."""
        first = self._waiting.popleft()
        taken, kept, count = [first], deque[_WaitingTexts](), len(first.texts)
        for call in self._waiting:
            # Later calls of the same key overtake those of others, but never the first one, so
            # nobody waits forever.
            if call.key == first.key and count + len(call.texts) <= MOST_TEXTS:
                taken.append(call)
                count += len(call.texts)
            else:
                kept.append(call)
        self._waiting = kept
        return [call for call in taken if not call.result.done()]  # the others were cancelled

    async def _answer(self, calls: Sequence[_WaitingTexts]) -> None:
        """Run calls together; on failure separately, so that nobody gets the errors of others."""
        if not calls:
            return
        texts = [text for call in calls for text in call.texts]
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, calls[0].work, texts)
        except Exception as error:
            # Errors of the input only. Others (memory, a bug) would come again for each call.
            if len(calls) > 1 and isinstance(error, GptrsError):
                for call in calls:
                    await self._answer([call])
                return
            for call in calls:
                if not call.result.done():
                    call.result.set_exception(error)
            return
        begin = 0
        for call in calls:
            end = begin + len(call.texts)
            if not call.result.done():
                call.result.set_result(found[begin:end])
            begin = end

    def close(self) -> None:
        """End the thread after the running call."""
        self._thread.shutdown(wait=False, cancel_futures=True)
