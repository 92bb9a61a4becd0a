"""One vector a text: texts are batched by length, and pooled as the files of the model say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from gptrs.backend.protocol import Backend
from gptrs.backend.symbolic import PaddingBackend, SymbolicBackend, padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.errors import UsageError
from gptrs.quoting import listed, quoted
from gptrs.runtime.embedding.recipe import EmbeddingRecipe, embedding_recipe
from gptrs.runtime.embedding.steps import Normalize, Truncate, VectorStep
from gptrs.runtime.load import LoadedModel, require_known_tokens

BATCH_SIZE: Final = 32
"""Texts that run together unless the caller says otherwise."""
_SHORTEST: Final = 16
"""Tokens that short texts are padded to where each length is a program."""
_FEWEST: Final = 8
"""Tokens that short texts are padded to elsewhere: kernels for fewer may round in another way."""

_RECIPES: WeakKeyDictionary[LoadedModel, EmbeddingRecipe] = WeakKeyDictionary()

Progress = Callable[[int, int], None]
"""Called with the number of texts done and that of all."""


def embed(
    model: LoadedModel,
    texts: Sequence[str],
    batch_size: int = BATCH_SIZE,
    normalize: bool | None = None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the vector of each text, f32 [N, D], in the order of `texts`.

    Pooling, the steps after it, the most tokens of a text and the prompt before each text follow
    the model's files; see `embedding_recipe`. `normalize`: None follows the files, True
    L2-normalizes, False drops a trailing `Normalize`. `prompt_name` is one of the prompts in the
    files; a `prompt` of the caller's own replaces it, and an empty one is none. UsageError if there
    is no text or one without tokens; ModelError for a model without the capability `text_embedder`,
    or without a tokenizer.
    """
    if isinstance(texts, str):
        raise UsageError("`embed` takes a list of texts, got one text", hint="write `[text]`")
    if not texts or batch_size < 1:
        raise UsageError(
            f"`embed` needs at least 1 text and a batch of at least 1, got {len(texts)} and"
            f" {batch_size}"
        )
    recipe = recipe_of(model)
    first = _prompt(recipe, prompt_name, prompt)
    tokens = _tokens(model, recipe, [first + text for text in texts])
    skipped = 0 if recipe.pooling.include_prompt else _prompt_tokens(model, recipe, first)
    vectors = _pooled(model, recipe, tokens, batch_size, skipped, progress)
    for step in _steps(recipe, normalize):
        vectors = step(vectors)
    return vectors


def cosine_similarities(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of the angle between each two of the vectors [N, D], f32 [N, N]."""
    unit = Normalize()(vectors)
    return unit @ unit.T


def recipe_of(model: LoadedModel) -> EmbeddingRecipe:
    """Return how a model embeds texts, read from its files once.

    ModelError for settings that are not supported, or a model that embeds no texts.
    """
    if model not in _RECIPES:
        model.text_embedder()
        _RECIPES[model] = embedding_recipe(model.files)
    return _RECIPES[model]


def _prompt(recipe: EmbeddingRecipe, name: str | None, prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if name is None:
        return recipe.default_prompt
    if name not in recipe.prompts:
        raise UsageError(
            f"the model has no prompt {quoted(name)}",
            hint=f"it has {listed(recipe.prompts)}" if recipe.prompts else "it has none",
        )
    return recipe.prompts[name]


def _longest(model: LoadedModel, recipe: EmbeddingRecipe) -> int:
    context = model.text_embedder().context_length
    return context if recipe.max_length is None else min(recipe.max_length, context)


def _cased(recipe: EmbeddingRecipe, text: str) -> str:
    return text.lower() if recipe.lower_case else text


def _tokens(model: LoadedModel, recipe: EmbeddingRecipe, texts: Sequence[str]) -> list[list[int]]:
    embedder, tokenizer = model.text_embedder(), model.tokenizer
    limit = _longest(model, recipe)
    rows = [tokenizer.encode_within(_cased(recipe, text), limit) for text in texts]
    for number, row in enumerate(rows):
        if not 1 <= len(row) <= limit:
            raise UsageError(
                f"text {number} has {len(row)} tokens, the model takes from 1 to {limit}",
                hint="leave out empty texts",
            )
        require_known_tokens(row, embedder.vocab_size)
    return rows


def _prompt_tokens(model: LoadedModel, recipe: EmbeddingRecipe, prompt: str) -> int:
    if not prompt:
        return 0
    # What ends a text stays where the prompt alone is too long.
    length = model.tokenizer.prefix_length(_cased(recipe, prompt))
    return min(length, _longest(model, recipe) - 1)


def _pooled(
    model: LoadedModel,
    recipe: EmbeddingRecipe,
    tokens: Sequence[Sequence[int]],
    batch_size: int,
    skipped: int,
    progress: Progress | None,
) -> np.ndarray:
    """Return the pooled vectors [N, D]; the longest texts run first, so that memory fails early."""
    embedder, pooling = model.text_embedder(), recipe.pooling
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    pooled: list[np.ndarray] = []
    for rows in _batches(order, batch_size):
        if progress is not None:
            progress(len(pooled), len(tokens))
        texts = [tokens[row] for row in rows]
        longest = max(map(len, texts))
        sizes = _sizes(model.backend, len(texts), longest, batch_size, embedder.context_length)
        vectors = embedder.encode(*_padded(texts, *sizes))
        # Each by itself: sums over padding may round in another way.
        for own, text in zip(vectors, texts, strict=False):
            seen = np.ones((1, len(text)), bool)
            pooled.append(pooling(own[np.newaxis, : len(text)], seen, skipped))
    if progress is not None:
        progress(len(tokens), len(tokens))
    found = np.concatenate(pooled)
    result = np.empty_like(found)
    result[order] = found
    return result


def _batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _sizes(
    backend: Backend, rows: int, longest: int, most_rows: int, context: int
) -> tuple[int, int]:
    """Return the number of texts and of tokens to pad to: few ones, unless any will do."""
    if isinstance(backend, SymbolicBackend):
        return rows, min(max(longest, _FEWEST), context)
    if isinstance(backend, PaddingBackend):
        return padded_size(backend, rows), min(padded_size(backend, longest), context)
    return bucket(rows, first=1, limit=most_rows), _padded_length(longest, context)


def _padded(
    rows: Sequence[Sequence[int]], count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens si64 [count, length] and their mask i1, padded at the right and below."""
    tokens = np.zeros((count, length), np.int64)
    mask = np.zeros((count, length), bool)
    # A row that is padding sees itself: one that saw nothing would be NaN.
    mask[len(rows) :] = True
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = True
    return tokens, mask


def _padded_length(length: int, context: int) -> int:
    """Return the least of 16, 24, 32, 48, 64, ... >= `length`: at most a third is padding."""
    whole = bucket(length, _SHORTEST, context)
    smaller = bucket(length, _SHORTEST) * 3 // 4
    return smaller if max(length, _SHORTEST) <= smaller < whole else whole


def _steps(recipe: EmbeddingRecipe, normalize: bool | None) -> tuple[VectorStep, ...]:
    """Return the steps after the pooling; vectors that were cut are made unit vectors again."""
    steps = recipe.steps
    if normalize is None:
        return steps
    cut = tuple(step for step in steps[-1:] if isinstance(step, Truncate))
    whole = steps[: len(steps) - len(cut)]
    ends_normal = bool(whole) and isinstance(whole[-1], Normalize)
    if normalize:
        return steps if ends_normal and not cut else (*steps, Normalize())
    return (*whole[:-1], *cut) if ends_normal else steps
