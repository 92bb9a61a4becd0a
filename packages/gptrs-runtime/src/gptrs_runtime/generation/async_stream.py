"""Text as it is generated, for programs with an event loop: steps run in threads beside it."""

from __future__ import annotations

import asyncio
import threading
from typing import Unpack

from gptrs_runtime.generation.keyword_options import generation_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.prompts import Prompt


class AsyncTextStream:
    """An asynchronous iterator over pieces of generated text; `generation` is the outcome so far.

    Each step runs in a thread, so that the event loop goes on meanwhile. A task that is cancelled
    leaves its step running to its end; `aclose` waits for it.
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
        """End the stream where it is, and give its cache back."""
        await asyncio.to_thread(self._close)

    def _next(self) -> str | None:
        with self._lock:
            return next(self._stream, None)

    def _close(self) -> None:
        with self._lock:
            self._stream.close()


def astream(
    model: LoadedModel,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    **fields: Unpack[OptionFields],
) -> AsyncTextStream:
    """Generate piece by piece for `async for`; parameters and errors as those of `stream`.

    All checks happen when it is called, before any work.
    """
    asked = generation_options(model, options, fields).for_stream()
    return AsyncTextStream(TextStream(model, prompt, asked))
