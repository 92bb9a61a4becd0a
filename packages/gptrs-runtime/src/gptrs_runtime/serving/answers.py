"""The answers to one request, read piece by piece while the thread of an engine makes them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from gptrs.quick_dataclass import dataclass
from gptrs.quoting import counted
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.outcome import FinishReason, Generation
from gptrs_runtime.generation.token_scores import TokenScores

TakeNow = Callable[[Sequence["Piece"]], bool]
"""Takes pieces in the callback that tells of them; False leaves them to the task that waits."""


@dataclass(frozen=True)
class Piece:
    """Tokens that one step added to answer `index`, and the text they complete, maybe empty.

    `finish_reason` is None until the last piece of the answer; `error` says why where that is
    "error". `scores` are there where `logprobs` were asked for, one for each token.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScores, ...]
    finish_reason: FinishReason | None
    error: str | None = None


class AnswerStream:
    """An iterator over the `Piece`s of the answers to a request, for `for` and for `async for`.

    It ends when all answers have ended, or once it was cancelled; an error that ended the request
    is raised then. One thread, or one task, reads it. `cancel` takes it out of the engine within
    one step; so does leaving a `with` or `async with` block.
    """

    def __init__(
        self, texts: Sequence[GeneratedText], cancel: Callable[[AnswerStream], None]
    ) -> None:
        self.texts = tuple(texts)
        self.submitted = time.perf_counter()
        self._cancel = cancel
        self._pieces: deque[Piece] = deque()
        self._told = [0] * len(texts)
        """How many tokens of each answer are in pieces."""
        self._open = len(texts)
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread_waits = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the task that reads."""
        self._waiter: asyncio.Future[None] | None = None
        self._take: TakeNow | None = None
        """Asked before the task that waits is woken."""

    def __repr__(self) -> str:
        tokens = sum(len(text.tokens) for text in self.texts)
        return f"<AnswerStream: {counted(len(self.texts), 'answer')}, {counted(tokens, 'token')}>"

    @property
    def generations(self) -> list[Generation]:
        """The outcome of each answer so far."""
        return [text.generation() for text in self.texts]

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt has."""
        return len(self.texts[0].prompt)

    @property
    def cached_tokens(self) -> int:
        """How many of them the cache had, so that they were not read again."""
        return self.texts[0].found

    @property
    def done(self) -> bool:
        """Whether no more pieces will come: all answers ended, or cancelled, or failed."""
        return self._open == 0

    def cancel(self) -> None:
        """Take the request out, at the end of the step that runs; nothing happens if it ended."""
        if not self.done:
            self._cancel(self)

    def result(self) -> list[Generation]:
        """Wait until all answers have ended, and return them."""
        for _ in self:
            pass
        return self.generations

    async def aresult(self) -> list[Generation]:
        """Wait as `result` does, in a program with an event loop."""
        async for _ in self:
            pass
        return self.generations

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Piece:
        with self._changed:
            self._thread_waits = True  # before it looks: the engine adds first, and then looks here
            while not self._pieces and not self.done:
                self._changed.wait()
            self._thread_waits = False
        piece = self._next_known()
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> Piece:
        await self._wait()
        piece = self._next_known()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def grown(self, take: TakeNow | None = None) -> list[Piece]:
        """Wait for a piece, and return all that have come; none after the last one.

        In an event loop that is busy, a task reads so what several steps added at once. While it
        waits, `take` may take pieces before the last ones, which is cheaper than to wake the task.
        """
        self._take = take
        await self._wait()
        if self._pieces:
            return [self._pieces.popleft() for _ in range(len(self._pieces))]
        self._next_known()
        return []

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    async def _wait(self) -> None:
        """Wait until there are pieces, or all answers have ended."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        while not self._pieces and not self.done:
            # What changes from here on wakes it: `wake_task` runs in this loop, and so after this.
            self._waiter = self._loop.create_future()
            await self._waiter

    def _next_known(self) -> Piece | None:
        """Return the next piece, None after the last one; the error that ended the request."""
        if self._pieces:
            return self._pieces.popleft()
        if self._error is not None:
            raise self._error
        return None

    # What follows is called by the thread of the engine.

    def grow(self, text: GeneratedText, piece: str) -> None:
        """Add what a step appended to one of the answers."""
        index = self.texts.index(text)
        first, self._told[index] = self._told[index], len(text.tokens)
        reason = text.reason if text.ended else None
        tokens, scores = tuple(text.tokens[first:]), tuple(text.scores[first:])
        self._pieces.append(Piece(index, piece, tokens, scores, reason, text.error))
        if reason is not None:
            self._open -= 1

    def end(self, error: Exception | None = None) -> None:
        """End all answers that have not ended; `error` says why."""
        if not self.done:
            self._error = error
            self._open = 0

    def wake(self) -> asyncio.AbstractEventLoop | None:
        """Wake a thread that waits; return the event loop in which a task may wait, if one does."""
        if self._thread_waits:
            with self._changed:
                self._changed.notify_all()
        return self._loop

    def wake_task(self) -> None:
        """Wake the task that waits; called in its event loop."""
        if self._waiter is None or self._waiter.done():
            return
        try:
            taken = self._taken()
        except Exception as error:  # an answer ends by its own errors, not by those of others
            self._waiter.set_exception(error)
        else:
            if not taken:
                self._waiter.set_result(None)

    def _taken(self) -> bool:
        """Return whether there were pieces, which are taken, and more will come."""
        if self._take is None or self.done or not self._pieces:
            return False
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        if self._take(pieces):
            return True
        self._pieces.extendleft(reversed(pieces))
        return False
