"""The file that a generation keeps the cache of its prompt in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.lazy_module import lazy_module
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.paged_cache import PagedCache
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from gptrs.checkpoint.formats import tensor_archive
    from gptrs_runtime.generation import prompt_cache
else:
    tensor_archive = lazy_module("gptrs.checkpoint.formats.tensor_archive")
    prompt_cache = lazy_module("gptrs_runtime.generation.prompt_cache")


class PromptFile:
    """The file that `options` name, if they do; what it holds goes into `cache` at once.

    CheckpointError if it is unusable.
    """

    def __init__(
        self, model: LoadedModel, options: GenerationOptions, cache: PagedCache | None
    ) -> None:
        self._model = model
        self._cache = cache
        self._path = None if options.prompt_cache is None else Path(options.prompt_cache)
        self._saved: tuple[int, ...] = ()
        if self._path is None or cache is None:
            return
        tensor_archive.require_writable(self._path)
        if self._path.exists():
            found = prompt_cache.load_prompt_cache(self._path, model, cache)
            cache.add_pages(found.tokens, found.groups)
            self._saved = found.tokens

    def save(self, prompt: TextPages) -> None:
        """Write the pages of a prompt that has been read, unless the file has them already."""
        tokens = tuple(prompt.tokens)
        if self._path is None or self._cache is None or tokens == self._saved:
            return
        pages = prompt_cache.PromptPages(tokens, self._cache.read_pages(prompt))
        prompt_cache.save_prompt_cache(self._path, self._model, self._cache, pages)
