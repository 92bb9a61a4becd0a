"""The answers to one request, read piece by piece while an engine's thread generates them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gptrs.backend.memory import memory_bytes
from gptrs.errors import ModelError
from gptrs.ir.dtypes import DType
from gptrs.plugins.capabilities import CausalLM
from gptrs.quoting import counted
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import FinishReason, Generation
from gptrs_runtime.generation.paged_cache import STATES
from gptrs_runtime.generation.source_cache import AdaptedSteps, FamilyCache, adapted_steps
from gptrs_runtime.generation.step_times import cache_budget, cache_dtype
from gptrs_runtime.generation.text_stream import TokenScores
from gptrs_runtime.loaded_model import LoadedModel

TakeNow = Callable[[Sequence["Piece"]], bool]
"""Handles pieces in the notifying callback; False leaves them to the waiting task."""


class Piece(Struct, frozen=True):
    """Tokens that one step added to answer `index`, and the text they complete, maybe empty.

    `finish_reason` is None until the last piece of the answer; if it is "error", `error` has the
    reason. `scores` has one entry for each token, if `logprobs` were requested.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScores, ...]
    finish_reason: FinishReason | None
    error: str | None = None


class AnswerStream:
    """An iterator over the `Piece`s of the answers to a request, for `for` and for `async for`.

    It ends when all answers have ended or the request was cancelled; an error that ended the
    request is raised at that point. One thread, or one task, reads it. `cancel` removes it from the
    engine within one step; so does leaving a `with` or `async with` block.
    """

    def __init__(
        self, texts: Sequence[GeneratedText], cancel: Callable[[AnswerStream], None]
    ) -> None:
        self.texts = tuple(texts)
        self.submitted = time.perf_counter()
        self.model = ""
        """The name of its model in the engine."""
        self.time_limit: float | None = None
        """Seconds after which it is ended."""
        self._cancel = cancel
        self._pieces: deque[Piece] = deque()
        self._told = [0] * len(texts)
        """Number of tokens of each answer delivered in pieces."""
        self._open = len(texts)
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread_waits = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the task that reads."""
        self._waiter: asyncio.Future[None] | None = None
        self._take: TakeNow | None = None
        """Called before the waiting task is woken."""

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
        """Number of prompt tokens that were cached, and not read again."""
        return self.texts[0].found

    @property
    def done(self) -> bool:
        """Whether no more pieces will come: all answers ended, or cancelled, or failed."""
        return self._open == 0

    @property
    def open(self) -> int:
        """How many answers have not ended."""
        return self._open

    def cancel(self) -> None:
        """Remove the request at the end of the current step; no effect if it has ended."""
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
            # Set before checking for pieces: the engine adds a piece first, then checks this.
            self._thread_waits = True
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
        """Wait for a piece, and return all that have arrived; empty after the last one.

        In a busy event loop, a task thus reads the pieces of several steps at a time. While it
        waits, `take` may consume all pieces but the last, which is cheaper than waking the task.
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
            # No change is missed: `wake_task` runs in this event loop, so not before this returns.
            self._waiter = self._loop.create_future()
            await self._waiter

    def _next_known(self) -> Piece | None:
        """Return the next piece, None after the last one; raise the error of the request."""
        if self._pieces:
            return self._pieces.popleft()
        if self._error is not None:
            raise self._error
        return None

    # The following methods are called by the engine's thread.

    def grow(self, text: GeneratedText, piece: str) -> None:
        """Add what a step appended to one of the answers."""
        index = self.texts.index(text)
        first, self._told[index] = self._told[index], len(text.tokens)
        reason = text.reason if text.ended else None
        tokens, scores = tuple(text.tokens[first:]), tuple(text.scores[first:])
        # Before `_open` changes: a reader that sees no open answers must find the last piece.
        self._pieces.append(Piece(index, piece, tokens, scores, reason, text.error))
        if reason is not None:
            self._open -= 1

    def end(self, error: Exception | None = None) -> None:
        """End all answers that have not ended; `error` says why."""
        if not self.done:
            # Before `_open`, too: readers look at it first.
            self._error = error
            self._open = 0

    @property
    def has_begun(self) -> bool:
        """Whether one of its texts has begun, so that it no longer waits."""
        return any(text.has_begun for text in self.texts)

    def wake(self) -> asyncio.AbstractEventLoop | None:
        """Wake a waiting thread; return the event loop of a waiting task, if any."""
        # Taking the lock for every piece costs more than this look, which is mostly false.
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
        except Exception as error:  # an answer ends only by its own errors
            self._waiter.set_exception(error)
        else:
            if not taken:
                self._waiter.set_result(None)

    def _taken(self) -> bool:
        """Let `take` consume the pieces; return whether it did and more will come."""
        if self._take is None or self.done or not self._pieces:
            return False
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        if self._take(pieces):
            return True
        self._pieces.extendleft(reversed(pieces))
        return False


# Divides one memory budget among several key/value caches.


_CONTEXTS = 8
_SHARE_OF_MEMORY = 2


def shared_budget(
    models: Sequence[LoadedModel], budget: int | str | None, dtype: str | None
) -> list[int | None]:
    """Return the bytes for each model's cache, so that all hold equally many contexts.

    `budget` is the total for all models, as in `GenerationOptions`; None uses the default for one
    model, and for several at most half of the memory and 8 contexts of each. UsageError for a
    malformed one, ModelError for a model that cannot generate.
    """
    total = cache_budget(budget)
    # Encoder-decoders keep no pages.
    contexts = [
        0 if "seq2seq" in model.capabilities else _context_bytes(model.causal_lm(), kept)
        for kept in [cache_dtype(dtype)]
        for model in models
    ]
    if len(models) == 1:
        return [total]
    if total is None:
        memory = memory_bytes()
        total = _CONTEXTS * sum(contexts)
        total = total if memory is None else min(total, memory // _SHARE_OF_MEMORY)
    return [total * size // max(1, sum(contexts)) or None for size in contexts]


def _context_bytes(lm: CausalLM, dtype: DType) -> int:
    """Return the bytes of the keys and values of a whole context."""
    return (
        sum(
            2
            * spec.n_kv_heads
            * spec.head_dim
            * min(spec.window or lm.context_length, lm.context_length)
            for spec in lm.cache_specs()
        )
        * dtype.numpy.itemsize
    )


# Groups the models of an engine that step together: those that differ only in adapters.


_logger = logging.getLogger("gptrs")

MOST_ADAPTERS: Final = 8
"""Most adapters in one step, since each row is multiplied by the factors of all of them."""


class Family(Struct, frozen=True):
    """A model that steps separately, or several that differ in their adapters and step `together`.

    `names` are their names in requests.
    """

    models: Sequence[LoadedModel]
    names: Sequence[str]
    together: AdaptedSteps | None = None

    def new_cache(self, options: GenerationOptions) -> FamilyCache | None:
        """Return a cache for all of them; None for one model, which already has one."""
        if self.together is None:
            return None
        dtype, budget = cache_dtype(options.cache_dtype), cache_budget(options.cache_budget)
        states = STATES if options.guesses else 1
        return FamilyCache(self.models, self.together, dtype, budget, states)

    def number(self, model: LoadedModel) -> int:
        """Return the index of a model in the cache, 0 if it is the only one."""
        return 0 if self.together is None else 1 + list(self.models).index(model)


def families(models: Mapping[str, LoadedModel]) -> list[Family]:
    """Return which of the models take steps together: up to `MOST_ADAPTERS` adapters of one.

    They must change the same layers, since a product of zeros would change the rounding of later
    sums. All others take separate steps, as do adapters of models whose layers do not support an
    adapter per row.
    """
    alike: dict[Hashable, dict[str, LoadedModel]] = {}
    for name, model in models.items():
        own = model.adapter
        # Only added products can be selected per row; adapters with other changes step separately.
        changed = () if own is None else own.modules if own.is_summed else (own.digest,)
        alike.setdefault((id(model.base or model), frozenset(changed)), {})[name] = model
    return [family for named in alike.values() for family in _of_equal_layers(named)]


def _of_equal_layers(models: Mapping[str, LoadedModel]) -> list[Family]:
    """Return the families of names whose models share their weights and change the same layers."""
    adapted = list({id(model): model for model in models.values() if model.base}.values())
    found = [Family((model,), (name,)) for name, model in models.items()]
    for start in range(0, len(adapted) - 1, MOST_ADAPTERS):
        members = adapted[start : start + MOST_ADAPTERS]
        try:
            together = adapted_steps(members)
        except ModelError as error:
            _logger.warning("adapters take separate steps: %s", error)
            break
        names = [name for name, model in models.items() if any(model is m for m in members)]
        found = [each for each in found if each.names[0] not in names]
        found.append(Family(members, names, together))
    return found
