"""Text as it is generated, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import require_writable
from gptrs.runtime.generation.options import Generation, GenerationOptions
from gptrs.runtime.generation.plan import Plan, Prompt
from gptrs.runtime.generation.prompt_cache import PromptCache, load_prompt_cache, save_prompt_cache
from gptrs.runtime.generation.steps import Steps
from gptrs.runtime.load import LoadedModel


class TextStream:
    """An iterator over pieces of generated text; `generation` is the outcome so far.

    All checks happen when it is made, before any work. Pieces are whole characters. A model
    without a tokenizer yields empty pieces, one a token. What `known` holds of the prompt is not
    read again; it is used up.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt: Prompt,
        options: GenerationOptions,
        known: PromptCache | None = None,
    ) -> None:
        plan = Plan(model, options)
        self._row = plan.row(plan.prompt_tokens(prompt))
        self._steps = plan.steps([self._row.context])
        self._file = PromptFile(model, options)
        self._known = self._file.known() if known is None else known
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The outcome; while the stream is not exhausted, what there is so far."""
        return self._row.generation()

    def prompt_cache(self) -> PromptCache | None:
        """The cache of all tokens that were read, for another text that begins like this one.

        None where there is none; the stream must not go on afterwards.
        """
        return self._steps.prompt_cache()

    def _run(self) -> Iterator[str]:
        self._row.start()
        logits = read_prompt(self._steps, self._file, self._known)
        self._known = None
        yield self._row.take(logits[0])
        while not self._row.ended:
            yield self._row.take(self._steps.next()[0])


class PromptFile:
    """The file in which the cache of a prompt stays, if the options name one."""

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        self._model = model
        self._path = None if options.prompt_cache is None else Path(options.prompt_cache)
        self._saved: tuple[int, ...] = ()
        if self._path is not None:
            require_writable(self._path)

    def known(self) -> PromptCache | None:
        """What is in the file, None if there is none; CheckpointError if it cannot be used."""
        if self._path is None or not self._path.exists():
            return None
        found = load_prompt_cache(self._path, self._model)
        self._saved = found.tokens
        return found

    def save(self, cache: PromptCache | None) -> None:
        """Write the cache of a prompt unless it is what the file has."""
        if self._path is None or cache is None or cache.tokens == self._saved:
            return
        save_prompt_cache(self._path, self._model, cache.tokens, cache.cache)


def read_prompt(steps: Steps, file: PromptFile, known: PromptCache | None) -> np.ndarray:
    """Logits [1, V] after the only prompt, whose cache goes to the file."""
    logits = steps.begin(known)
    file.save(steps.prompt_cache())
    return logits
