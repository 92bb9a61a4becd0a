"""Text as it is generated, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import require_writable
from gptrs.runtime.generation.decode_batch import DecodeBatch
from gptrs.runtime.generation.generate_step import generate_step
from gptrs.runtime.generation.options import Generation, GenerationOptions
from gptrs.runtime.generation.prompt_cache import PromptCache, load_prompt_cache, save_prompt_cache
from gptrs.runtime.generation.setup import GenerationSetup
from gptrs.runtime.load import LoadedModel, Prompt


class TextStream:
    """An iterator over pieces of generated text; `generation` is the outcome so far.

    All checks happen when it is made, before any work. Pieces are whole characters. A model
    without a tokenizer yields empty pieces, one a token. Tokens that `known` holds are not read
    again; `known` is used up.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt: Prompt,
        options: GenerationOptions,
        known: PromptCache | None = None,
    ) -> None:
        setup = GenerationSetup(model, options)
        self._text = setup.new_text(model.prompt_tokens(prompt))
        self._batch = setup.new_batch([self._text])
        self._file = PromptFile(model, options)
        self._known = self._file.known() if known is None else known
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The outcome so far; complete once the stream is exhausted."""
        return self._text.generation()

    def prompt_cache(self) -> PromptCache | None:
        """Return the cache of all tokens that were read, for another text that begins like this.

        None where there is none; the stream must not go on afterwards.
        """
        return self._batch.prompt_cache()

    def _run(self) -> Iterator[str]:
        self._text.start()
        logits = read_prompt(self._batch, self._file, self._known)
        self._known = None
        for _, piece in generate_step([self._text], self._batch, logits):
            yield piece


class PromptFile:
    """The file that keeps the cache of a prompt, if the options name one."""

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        self._model = model
        self._path = None if options.prompt_cache is None else Path(options.prompt_cache)
        self._saved: tuple[int, ...] = ()
        if self._path is not None:
            require_writable(self._path)

    def known(self) -> PromptCache | None:
        """Return what is in the file, None if there is none; CheckpointError if it is unusable."""
        if self._path is None or not self._path.exists():
            return None
        found = load_prompt_cache(self._path, self._model)
        self._saved = found.tokens
        return found

    def save(self, cache: PromptCache | None) -> None:
        """Write the cache of a prompt unless the file has it already."""
        if self._path is None or cache is None or cache.tokens == self._saved:
            return
        save_prompt_cache(self._path, self._model, cache.tokens, cache.cache)


def read_prompt(batch: DecodeBatch, file: PromptFile, known: PromptCache | None) -> np.ndarray:
    """Prefill the only prompt and save its cache to the file; return the logits f32 [1, V]."""
    logits = batch.prefill(known)
    file.save(batch.prompt_cache())
    return logits
