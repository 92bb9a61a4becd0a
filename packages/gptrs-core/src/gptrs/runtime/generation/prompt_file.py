"""The file that a generation keeps the cache of its prompt in."""

from __future__ import annotations

from pathlib import Path

from gptrs.checkpoint.formats.tensor_archive import require_writable
from gptrs.nn.pages.page_pool import TextPages
from gptrs.runtime.generation.options import GenerationOptions
from gptrs.runtime.generation.paged_cache import PagedCache
from gptrs.runtime.generation.prompt_cache import PromptPages, load_prompt_cache, save_prompt_cache
from gptrs.runtime.loaded_model import LoadedModel


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
        require_writable(self._path)
        if self._path.exists():
            found = load_prompt_cache(self._path, model, cache)
            cache.add_pages(found.tokens, found.groups)
            self._saved = found.tokens

    def save(self, prompt: TextPages) -> None:
        """Write the pages of a prompt that has been read, unless the file has them already."""
        tokens = tuple(prompt.tokens)
        if self._path is None or self._cache is None or tokens == self._saved:
            return
        pages = PromptPages(tokens, self._cache.read_pages(prompt))
        save_prompt_cache(self._path, self._model, self._cache, pages)
