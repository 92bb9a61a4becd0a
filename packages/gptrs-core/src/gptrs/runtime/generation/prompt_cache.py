"""The key/value cache of a prompt in a file, reused by prompts with the same beginning."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive, write_archive
from gptrs.checkpoint.models.model_source import MAX_TOKENIZER_BYTES, TOKENIZER
from gptrs.errors import CheckpointError, UsageError
from gptrs.nn.kv_cache import KVCache
from gptrs.quoting import quoted
from gptrs.runtime.generation.model_identity import model_identity
from gptrs.runtime.load import LoadedModel
from gptrs.strict_json import parse_object

LAYOUT: Final = 1
"""Changes whenever the meaning of such a file does."""

_ABOUT = "prompt_cache"
_TOKENS = "tokens"
_DIGEST = "digest"
_MAX_ABOUT_BYTES = 10_000
_AGAIN = "remove the file, or name another one, to have it made again"


@dataclass(frozen=True)
class PromptCache:
    """A cache for one text, and the tokens in it."""

    tokens: tuple[int, ...]
    cache: KVCache

    def reuse(self, prompt: Sequence[int]) -> int:
        """Rewind to the tokens that `prompt` begins with too; return how many they are.

        At least one token of the prompt is left to run, for the logits that it gives. Where a layer
        with a window has forgotten what is needed, the cache begins anew: 0.
        """
        shared = _common(self.tokens, prompt[:-1])
        if not self.cache.rewindable(shared):
            shared = 0
        self.cache.rewind(shared)
        return shared


def save_prompt_cache(
    path: str | os.PathLike[str], model: LoadedModel, tokens: Sequence[int], cache: KVCache
) -> None:
    """Write the cache of `tokens`, one text, to a file, whole or not at all.

    The suffix names the format: `.safetensors` or `.gptrsten`. UsageError for another one and a
    cache that is not of these tokens, CheckpointError if the file cannot be written.
    """
    if (
        cache.batch != 1
        or cache.left_padding is not None
        or cache.length != len(tokens)
        or not tokens
    ):
        raise UsageError(
            f"a cache of {cache.batch} texts and {cache.length} positions is not that of one prompt"
            f" of {len(tokens)} tokens"
        )
    about = json.dumps({**_expected(model), "dtype": cache.dtype.name})
    arrays = {
        _ABOUT: np.frombuffer(about.encode(), np.uint8),
        _TOKENS: np.array(tokens, np.int64),
        **cache.state(),
    }
    write_archive(path, {**arrays, _DIGEST: _digest(arrays)})


def load_prompt_cache(path: str | os.PathLike[str], model: LoadedModel) -> PromptCache:
    """Read the file of a prompt that `model` has run; see `PromptCache.reuse`.

    CheckpointError if there is no such file, if it is damaged, of another layout, or if it was made
    with another model, tokenizer or dtype.
    """
    shown = quoted(str(path), 200)
    archive = open_archive(path)
    try:
        _require_same(_about(archive, shown), model, shown)
        arrays = {name: archive.read(name) for name in archive.names()}
    finally:
        archive.close()
    found = arrays.pop(_DIGEST, None)
    if found is None or not np.array_equal(found, _digest(arrays)):
        raise _refused(shown, "is damaged")
    tokens = arrays.pop(_TOKENS, np.empty(0))
    if tokens.ndim != 1 or tokens.dtype != np.int64 or not tokens.size:
        raise _refused(shown, "does not name its tokens")
    cache = model.causal_lm().new_cache(1)
    try:
        cache.restore(tokens.size, arrays)
    except UsageError as problem:
        raise _refused(shown, f"does not fit the model: {problem.message}") from problem
    return PromptCache(tuple(map(int, tokens)), cache)


def _expected(model: LoadedModel) -> dict[str, object]:
    data = model.files.read_bytes(TOKENIZER, limit=MAX_TOKENIZER_BYTES)
    return {
        "layout": LAYOUT,
        "model": model_identity(model),
        "tokenizer": None if data is None else hashlib.blake2b(data, digest_size=16).hexdigest(),
    }


def _about(archive: TensorArchive, shown: str) -> Mapping[str, object]:
    """Return the description in the file."""
    if _ABOUT not in archive.names() or archive.type_of(_ABOUT).nbytes > _MAX_ABOUT_BYTES:
        raise _refused(shown, "is no file of a cached prompt")
    return parse_object(archive.read(_ABOUT).tobytes(), shown, CheckpointError, hint=_AGAIN)


def _require_same(about: Mapping[str, object], model: LoadedModel, shown: str) -> None:
    layout = about.get("layout")
    if layout != LAYOUT:
        raise _refused(shown, f"has layout {layout!r} of a cached prompt, {LAYOUT} is read")
    for key, value in _expected(model).items():
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


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _refused(shown: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{shown} {problem}", hint=_AGAIN)
