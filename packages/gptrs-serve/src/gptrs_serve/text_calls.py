"""Calls of models that read texts in one step: one at a time, texts of several clients joined."""

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
"""Texts of one call at most; a request of more takes several, and others get in between."""
Result = TypeVar("Result")
Work = Callable[[Sequence[str]], Sequence[Any]]


class _WaitingTexts(Struct, frozen=True, eq=False):
    """Texts that wait. Calls of one key may be joined: their work gives each text the same."""

    key: Hashable
    texts: Sequence[str]
    work: Work
    result: asyncio.Future[Sequence[Any]]


class TextCalls:
    """A queue of calls that run one after another on a thread of their own.

    While a model is busy with one call, those that come are joined as far as their keys are equal:
    a batch costs less than its texts one by one. All methods belong to one event loop.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[_WaitingTexts] = deque()
        self._thread = ThreadPoolExecutor(1, "gptrs-texts")
        self._running: asyncio.Task[None] | None = None

    async def run(
        self, key: Hashable, texts: Sequence[str], work: Callable[[Sequence[str]], Sequence[Result]]
    ) -> list[Result]:
        """Return what `work` gives for each text, called with texts of other calls of `key`, too.

        Where this task is cancelled, texts that wait are dropped. EngineBusyError if there are too
        many requests; else the error of `work` for these texts, as if they were alone.
        """
        with self._counted():
            return await self._run(key, texts, work)

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Return what `work` gives, when it is its turn; errors as of `run`."""
        with self._counted():
            return (await self._one(object(), [""], lambda _: [work()]))[0]

    @contextmanager
    def _counted(self) -> Generator[None]:
        self._ledger.begin()
        try:
            yield
        finally:
            self._ledger.end()

    async def _run(self, key: Hashable, texts: Sequence[str], work: Work) -> list[Any]:
        found: list[Any] = []
        for begin in range(0, max(1, len(texts)), MOST_TEXTS):
            part = texts[begin : begin + MOST_TEXTS]
            try:
                # Without a text it is an error, which company would hide.
                found.extend(await self._one(key if part else object(), part, work))
            except UsageError:
                if not begin:
                    raise
                # Told again with the texts before it, for errors name texts by their numbers.
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
        """Take the call that waits longest, and others of its key while their texts are few."""
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
        """Run calls as one; where that fails each by itself, so that nobody gets others' errors."""
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
        """End the thread after the call that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
