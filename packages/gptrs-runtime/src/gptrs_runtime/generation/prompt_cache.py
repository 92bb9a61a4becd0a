"""Saves the pages of a prompt to a file, for prompts of other processes with the same prefix."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive, write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import lazy_module
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.paged_cache import PagedCache
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.text_cache import model_identity
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.model_source import MAX_TOKENIZER_BYTES, TOKENIZER

if TYPE_CHECKING:
    from gptrs.checkpoint.formats import tensor_archive
else:
    tensor_archive = lazy_module("gptrs.checkpoint.formats.tensor_archive")

LAYOUT: Final = 3
"""Format version of the file."""

_ABOUT = "prompt_cache"
_TOKENS = "tokens"
_DIGEST = "digest"
_MAX_ABOUT_BYTES = 10_000
_AGAIN = "remove the file, or name another one, to have it made again"


class PromptPages(Struct, frozen=True):
    """Tokens and their pages in each cache group, as returned by `PagedCache.read_pages`."""

    tokens: tuple[int, ...]
    groups: Sequence[Sequence[np.ndarray]]


def save_prompt_cache(
    path: str | os.PathLike[str], model: LoadedModel, cache: PagedCache, pages: PromptPages
) -> None:
    """Write pages of `cache` to a file atomically.

    The suffix names the format: `.safetensors` or `.gptrsten`. UsageError for another suffix, or
    for pages that do not match the tokens; CheckpointError if the file cannot be written.
    """
    contents = {
        name: array
        for names, parts in zip(_names(cache), pages.groups, strict=True)
        for name, array in zip(names, parts, strict=True)
    }
    problem = _mismatch(pages.tokens, contents, cache)
    if problem:
        raise UsageError(f"these are not pages of {len(pages.tokens)} tokens: {problem}")
    arrays = {
        _ABOUT: np.frombuffer(json.dumps(_expected(model, cache)).encode(), np.uint8),
        _TOKENS: np.array(pages.tokens, np.int64),
        **contents,
    }
    # The digest covers tokens and settings, too: pages under the wrong prompt would give plausible
    # nonsense.
    write_archive(path, {**arrays, _DIGEST: _digest(arrays)})


def load_prompt_cache(
    path: str | os.PathLike[str], model: LoadedModel, cache: PagedCache
) -> PromptPages:
    """Read the file of a prompt that `model` has run, for `PagedCache.add_pages`.

    CheckpointError if there is no such file, if it is damaged, of another layout, or if it was made
    with another model, tokenizer, dtype or size of pages.
    """
    shown = quoted(str(path), 200)
    archive = open_archive(path)
    try:
        # First, so that the pages of another model are not read at all.
        _require_same(_about(archive, shown), model, cache, shown)
        arrays = {name: archive.read(name) for name in archive.names() if name != _ABOUT}
        about = archive.read(_ABOUT)
    finally:
        archive.close()
    found = arrays.pop(_DIGEST, None)
    if found is None or not np.array_equal(found, _digest({**arrays, _ABOUT: about})):
        raise _refused(shown, "is damaged")
    tokens = arrays.pop(_TOKENS, np.empty(0))
    if tokens.ndim != 1 or tokens.dtype != np.int64 or not tokens.size:
        raise _refused(shown, "does not name its tokens")
    known = tuple(map(int, tokens))
    problem = _mismatch(known, arrays, cache)
    if problem:
        raise _refused(shown, f"does not fit the model: {problem}")
    return PromptPages(known, [[arrays[name] for name in names] for names in _names(cache)])


def _names(cache: PagedCache) -> list[list[str]]:
    """Return the names of the arrays of each group, in page order."""
    return [
        [f"layer.{layer}.{part}" for layer in group.layers for part in ("keys", "values")]
        for group in cache.buffers.groups
    ]


def _mismatch(
    tokens: Sequence[int], arrays: Mapping[str, np.ndarray], cache: PagedCache
) -> str | None:
    """Return why these arrays cannot be the pages of `tokens`, None if they can."""
    if not 0 < len(tokens) <= cache.context_length:
        return f"{len(tokens)} tokens do not fit into the context of {cache.context_length}"
    for number, names in enumerate(_names(cache)):
        pages = cache.kept_pages(number, len(tokens))
        for name, pool in zip(names, cache.page_types(number), strict=True):
            wanted = TensorType(pool.dtype, (pages, *pool.shape[1:]))
            found = arrays.get(name)
            if found is None or TensorType.of(found) != wanted:
                what = "nothing" if found is None else f"`{TensorType.of(found)}`"
                return f"`{name}` must be `{wanted}`, got {what}"
    return None


def _expected(model: LoadedModel, cache: PagedCache) -> dict[str, object]:
    data = model.files.read_bytes(TOKENIZER, limit=MAX_TOKENIZER_BYTES)
    return {
        "layout": LAYOUT,
        "model": model_identity(model),
        "backend": model.backend.name,
        "tokenizer": None if data is None else hashlib.blake2b(data, digest_size=16).hexdigest(),
        "dtype": cache.dtype.name,
        "page": PAGE_SIZE,
    }


def _about(archive: TensorArchive, shown: str) -> Mapping[str, object]:
    """Return the description in the file."""
    # It is read before the digest is checked, so its size is limited.
    if _ABOUT not in archive.names() or archive.type_of(_ABOUT).nbytes > _MAX_ABOUT_BYTES:
        raise _refused(shown, "is not a file of a cached prompt")
    return parse_object(archive.read(_ABOUT).tobytes(), shown, CheckpointError, hint=_AGAIN)


def _require_same(
    about: Mapping[str, object], model: LoadedModel, cache: PagedCache, shown: str
) -> None:
    layout = about.get("layout")
    if layout != LAYOUT:
        raise _refused(shown, f"has layout {layout!r} of a cached prompt, {LAYOUT} is read")
    for key, value in _expected(model, cache).items():
        if about.get(key) != value:
            raise _refused(shown, f"was made with another {key} than that of `{model.name}`")


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the digest of all names, types and elements, ui8[32]."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype}{list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return np.frombuffer(digest.digest(), np.uint8)


def _refused(shown: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{shown} {problem}", hint=_AGAIN)


# The file in which a generation keeps its prompt's cache.


class PromptFile:
    """The file that `options` name, if any; its pages are loaded into `cache` immediately.

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
            found = load_prompt_cache(self._path, model, cache)
            cache.add_pages(found.tokens, found.groups)
            self._saved = found.tokens

    def save(self, prompt: TextPages) -> None:
        """Write the pages of a prompt after it was read, unless the file already has them."""
        tokens = tuple(prompt.tokens)
        if self._path is None or self._cache is None or tokens == self._saved:
            return
        pages = PromptPages(tokens, self._cache.read_pages(prompt))
        save_prompt_cache(self._path, self._model, self._cache, pages)
