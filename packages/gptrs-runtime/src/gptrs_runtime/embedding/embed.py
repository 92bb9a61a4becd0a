"""One vector a text: texts are batched by length, and pooled as the files of the model say."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from gptrs.errors import UsageError
from gptrs.progress import Progress
from gptrs_runtime.embedding.match import text_vectors
from gptrs_runtime.embedding.recipe import EmbeddingRecipe, Similarity, embedding_recipe
from gptrs_runtime.embedding.steps import Normalize, Truncate, VectorStep
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.named_prompts import chosen_prompt
from gptrs_runtime.text_batches import BATCH_SIZE, text_batches
from gptrs_runtime.tokenization.encoded_text import Lengths, LongTexts

_RECIPES: WeakKeyDictionary[LoadedModel, EmbeddingRecipe] = WeakKeyDictionary()


def embed(
    model: LoadedModel,
    texts: Sequence[str],
    batch_size: int = BATCH_SIZE,
    normalize: bool | None = None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the vector of each text, f32 [N, D], in the order of `texts`.

    Pooling, the steps after it, the most tokens of a text and the prompt before each text follow
    the model's files; see `embedding_recipe`. `normalize`: None follows the files, True
    L2-normalizes, False drops a trailing `Normalize`. A model of images and texts gives the
    vectors of its texts, which lie in the space of `embed_images`. `prompt_name` is one of the
    prompts in the files; a `prompt` of the caller's own replaces it, and an empty one is none.

    A text of more tokens than the model reads is cut, and a note says so; `truncate=True` cuts it
    without one, `truncate=False` refuses it with ContextLengthError. `lengths` is called with how
    many tokens each text has, prompt included, and how many are read. UsageError if there is no
    text or one without tokens; ModelError for a model without the capability `text_embedder`, or
    without a tokenizer.
    """
    if isinstance(texts, str):
        raise UsageError("`embed` takes a list of texts, got one text", hint="write `[text]`")
    if not texts or batch_size < 1:
        raise UsageError(
            f"`embed` needs at least 1 text and a batch of at least 1, got {len(texts)} and"
            f" {batch_size}"
        )
    long = LongTexts(truncate, lengths)
    if "image_text" in model.capabilities:
        return _beside_images(model, texts, normalize, prompt_name, prompt, long)
    recipe = recipe_of(model)
    first = chosen_prompt(recipe.prompts, recipe.default_prompt, prompt_name, prompt)
    tokens = _tokens(model, recipe, [first + text for text in texts], long)
    skipped = 0 if recipe.pooling.include_prompt else _prompt_tokens(model, recipe, first)
    vectors = _pooled(model, recipe, tokens, batch_size, skipped, progress)
    for step in _steps(recipe, normalize):
        vectors = step(vectors)
    return vectors


def _beside_images(
    model: LoadedModel,
    texts: Sequence[str],
    normalize: bool | None,
    name: str | None,
    prompt: str | None,
    long: LongTexts,
) -> np.ndarray:
    """Return the vectors of texts in the space of images."""
    if name is not None:
        raise UsageError(f"a `{model.kind}` model has no named prompts", hint="give the `prompt`")
    vectors = text_vectors(model, [(prompt or "") + text for text in texts], long)
    return Normalize()(vectors) if normalize else vectors


def cosine_similarities(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of the angle between each two of the vectors [N, D], f32 [N, N]."""
    unit = Normalize()(vectors)
    return unit @ unit.T


def similarities(vectors: np.ndarray, function: Similarity = "cosine") -> np.ndarray:
    """Return how alike each two of the vectors [N, D] are, f32 [N, N]: more is more alike.

    The `function` is one of sentence-transformers': the cosine, the product, or a distance less
    than 0. `EmbeddingRecipe.similarity` is that of a model.
    """
    match function:
        case "cosine":
            return cosine_similarities(vectors)
        case "dot":
            return vectors @ vectors.T
        case "euclidean":
            return np.stack([-np.sqrt(np.square(vectors - row).sum(1)) for row in vectors])
        case "manhattan":
            return np.stack([-np.abs(vectors - row).sum(1) for row in vectors])


def recipe_of(model: LoadedModel) -> EmbeddingRecipe:
    """Return how a model embeds texts, read from its files once.

    ModelError for settings that are not supported, or a model that embeds no texts.
    """
    if model not in _RECIPES:
        model.text_embedder()
        _RECIPES[model] = embedding_recipe(model.files)
    return _RECIPES[model]


def _longest(model: LoadedModel, recipe: EmbeddingRecipe) -> int:
    context = model.text_embedder().context_length
    return context if recipe.max_length is None else min(recipe.max_length, context)


def _cased(recipe: EmbeddingRecipe, text: str) -> str:
    return text.lower() if recipe.lower_case else text


def _tokens(
    model: LoadedModel, recipe: EmbeddingRecipe, texts: Sequence[str], long: LongTexts
) -> list[list[int]]:
    embedder, tokenizer = model.text_embedder(), model.tokenizer
    limit = _longest(model, recipe)
    found = [tokenizer.encode_within(_cased(recipe, text), limit) for text in texts]
    long.told([length for _, length in found], limit)
    for row, _ in found:
        require_known_tokens(row, embedder.vocab_size)
    return [row for row, _ in found]


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
    order: list[int] = []
    pooled: list[np.ndarray] = []
    for batch in text_batches(tokens, batch_size, model.backend, embedder.context_length):
        if progress is not None:
            progress(len(pooled), len(tokens))
        vectors = embedder.encode(batch.tokens, batch.mask)
        # Each by itself: sums over padding may round in another way.
        for own, row in zip(vectors, batch.rows, strict=False):
            length = len(tokens[row])
            seen = np.ones((1, length), bool)
            pooled.append(pooling(own[np.newaxis, :length], seen, skipped))
        order.extend(batch.rows)
    if progress is not None:
        progress(len(tokens), len(tokens))
    found = np.concatenate(pooled)
    result = np.empty_like(found)
    result[order] = found
    return result


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
