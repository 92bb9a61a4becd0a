"""Streams of text as it is generated."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Unpack

from gptrs.lazy_module import lazy_module
from gptrs.quoting import counted
from gptrs_runtime.generation.beams import BeamSearch
from gptrs_runtime.generation.keyword_options import generation_options, tells_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.prompt_cache import PromptFile
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import Prompt

if TYPE_CHECKING:
    import asyncio
else:  # only needed for async streams
    asyncio = lazy_module("asyncio")


class TextStream:
    """An iterator over pieces of generated text; `generation` is the outcome so far.

    All checks happen in the constructor, before any work. Pieces consist of whole characters. A
    model without a tokenizer yields an empty piece per token. Cached tokens are not read again.
    With beams, the whole text comes as one piece; with `steps_at_once` above 1, several tokens may.
    """

    def __init__(self, model: LoadedModel, prompt: Prompt, options: GenerationOptions) -> None:
        setup = GenerationSetup(model, options)
        self._text = setup.new_text(model.prompt_tokens(prompt))
        if setup.beams is not None:
            self._pieces = self._found(setup.search(self._text))
            return
        self._scheduler = setup.new_scheduler()
        file = PromptFile(model, options, setup.cache)
        self._scheduler.add(self._text, when_read=file.save)
        self._pieces = self._run()

    def __repr__(self) -> str:
        outcome = self.generation
        tokens = counted(len(outcome.token_ids), "token")
        return f"<TextStream: {tokens} so far, {outcome.text[-40:]!r}>"

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The outcome so far; complete once the stream is exhausted."""
        return self._text.generation()

    def close(self) -> None:
        """End the stream, and release its cache."""
        self._pieces.close()

    def _found(self, search: BeamSearch) -> Generator[str]:
        self._text.start()
        (best, *_) = search.run()
        yield self._text.replay(best.tokens, search.prompt_read)

    def _run(self) -> Generator[str]:
        try:
            while self._scheduler.busy:
                for _, piece in self._scheduler.step():
                    yield piece
        finally:
            self._scheduler.close()


# Streams for programs with an event loop: steps run in other threads.


class AsyncTextStream:
    """An asynchronous iterator over pieces of generated text; `generation` is the outcome so far.

    Each step runs in a thread, so that the event loop stays responsive. A cancelled task lets its
    current step finish; `aclose` waits for it.
    """

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        piece = await asyncio.to_thread(self._next)
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def generation(self) -> Generation:
        """The outcome so far; complete once the stream is exhausted."""
        return self._stream.generation

    async def aclose(self) -> None:
        """End the stream, and release its cache."""
        await asyncio.to_thread(self._close)

    def _next(self) -> str | None:
        with self._lock:
            return next(self._stream, None)

    def _close(self) -> None:
        with self._lock:
            self._stream.close()


@tells_options
def astream(
    model: LoadedModel,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    **fields: Unpack[OptionFields],
) -> AsyncTextStream:
    """Generate piece by piece for `async for`; parameters and errors as for `stream`.

    All checks happen when it is called, before any work.
    """
    asked = generation_options(model, options, fields).for_stream()
    return AsyncTextStream(TextStream(model, prompt, asked))
