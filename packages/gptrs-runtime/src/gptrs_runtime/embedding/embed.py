"""One vector per text: texts are batched by length and pooled as the model's files say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs_runtime.embedding.modules import (
    EmbeddingRecipe,
    Normalize,
    Similarity,
    Truncate,
    VectorStep,
    embedding_recipe,
)
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import BATCH_SIZE, chosen_prompt, text_batches
from gptrs_runtime.text_classes.classify import softmax
from gptrs_runtime.tokenization.encoded_text import Lengths, LongTexts, TextLength
from gptrs_runtime.tokenization.special_tokens import named_tokens
from gptrs_runtime.torch_activations import sigmoid

# One vector per image: images are preprocessed as the model's files say.


Image = str | os.PathLike[str] | np.ndarray
"""A file, or pixels ui8 [H, W, 3] of red, green and blue."""
IMAGES: Final = 8
"""Default batch size of images."""


def embed_images(
    model: LoadedModel,
    images: Sequence[Image],
    batch_size: int = IMAGES,
    normalize: bool = False,
    *,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the vector of each image, f32 [N, E], in the order of `images`.

    The vector depends on the kind, see docs/images.md. `normalize` divides each by its length.
    UsageError if there is no image, or an array is not an image; ModelError for a model without the
    capability `image_embedder`, or a file that cannot be read.
    """
    embedder = model.image_embedder()
    if isinstance(images, str | os.PathLike) or len(images) == 0 or batch_size < 1:
        raise UsageError(
            "`embed_images` needs a list of images and a batch of at least 1",
            hint="write `embed_images(model, [image])`",
        )
    found: list[np.ndarray] = []
    for start in range(0, len(images), batch_size):
        if progress is not None:
            progress(start, len(images))
        make = model.image_processor
        prepared = [make(_pixels(one, make.on_white)) for one in images[start:][:batch_size]]
        found.extend(embedder.embed_images(batch) for batch in _of_one_size(prepared))
    if progress is not None:
        progress(len(images), len(images))
    vectors = np.concatenate(found)
    return Normalize()(vectors) if normalize else vectors


def _pixels(image: Image, on_white: bool) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        return read_image(image, on_white=on_white)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise UsageError(
            f"an image is a file or an array ui8[H, W, 3], got {image.dtype}{list(image.shape)}"
        )
    return image


def _of_one_size(images: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Group neighbours of equal size into batches."""
    batches: list[list[np.ndarray]] = []
    for image in images:
        # Neighbours only, so that the order of the results is that of the images.
        if batches and batches[-1][0].shape == image.shape:
            batches[-1].append(image)
        else:
            batches.append([image])
    return [np.stack(batch) for batch in batches]


# Image-text matching, by a model with a joint space of vectors.


class Matches(Struct, frozen=True, eq=False):
    """Scores of images and texts, each [images, texts].

    `logits` f32 are the outputs of the model, scaled cosines. `probabilities` f64 sum to 1 over the
    texts of an image, or are independent, as the model's `independent_scores` says.
    """

    logits: np.ndarray
    probabilities: np.ndarray


def match(
    model: LoadedModel,
    images: Sequence[Image],
    texts: Sequence[str],
    batch_size: int = IMAGES,
    *,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
) -> Matches:
    """Return how well each text belongs to each image.

    `truncate` and `lengths` are as of `embed`. UsageError if there is no image or text; ModelError
    for a model without the capability `image_text`, or without a tokenizer.
    """
    scorer = model.image_text()
    vectors = text_vectors(model, texts, LongTexts(truncate, lengths))
    pictures = embed_images(model, images, batch_size, normalize=True)
    scale, bias = scorer.scale_and_bias()
    # In f64: the scale of about 100 multiplies rounding errors of the cosines.
    cosines = pictures.astype(np.float64) @ Normalize()(vectors).T
    logits = (cosines * scale + bias).astype(np.float32)
    shares = sigmoid(logits) if scorer.independent_scores else softmax(logits)
    return Matches(logits, shares)


def text_vectors(model: LoadedModel, texts: Sequence[str], long: LongTexts) -> np.ndarray:
    """Return the vector of each text in the space of images, f32 [N, E]; errors as of `match`."""
    scorer = model.image_text()
    if isinstance(texts, str) or not texts:
        raise UsageError("a list of at least 1 text is needed", hint="write `[text]`")
    limit = scorer.context_length
    found_rows = [model.tokenizer.encode_within(text, limit) for text in texts]
    long.told([length for _, length in found_rows], limit)
    rows = [row for row, _ in found_rows]
    for row in rows:
        require_known_tokens(row, scorer.vocab_size)
    # CLIP takes its vector at the first end token: repeating that token behind it changes nothing.
    padding = _padding(model) if scorer.pads_texts else rows[0][-1]
    found: list[np.ndarray] = []
    for start in range(0, len(rows), BATCH_SIZE):
        batch = rows[start:][:BATCH_SIZE]
        length = limit if scorer.pads_texts else max(map(len, batch))
        tokens = np.full((len(batch), length), padding, np.int64)
        for index, row in enumerate(batch):
            tokens[index, : len(row)] = row
        found.append(scorer.embed_texts(tokens))
    return np.concatenate(found)


def _padding(model: LoadedModel) -> int:
    """Return the padding token."""
    name = named_tokens(model.files).get("pad_token")
    token = None if name is None else model.tokenizer.number(name)
    if token is None:
        raise ModelError(
            f"the files of `{model.name}` name no token of padding, which it needs",
            hint="add `pad_token` to tokenizer_config.json",
        )
    return token


_RECIPES: WeakKeyDictionary[LoadedModel, EmbeddingRecipe] = WeakKeyDictionary()


def embed(
    model: LoadedModel,
    texts: Sequence[str | Sequence[int]],
    batch_size: int = BATCH_SIZE,
    normalize: bool | None = None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate: bool | None = None,
    dimensions: int | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the vector of each text, f32 [N, D], in the order of `texts`.

    A text may be given as tokens, including special ones; then no prompt is prepended.

    Pooling, the steps after it, the most tokens of a text and the prompt before each text follow
    the model's files; see `embedding_recipe`. `normalize`: None follows the files, True
    L2-normalizes, False drops a trailing `Normalize`. A model of images and texts gives the vectors
    of its texts, which lie in the space of `embed_images`. `prompt_name` is one of the prompts in
    the files; a `prompt` overrides it, and an empty one means none. `dimensions` truncates vectors
    to their first elements and renormalizes unit vectors, for models trained for it (Matryoshka).
    UsageError if there are fewer.

    A text longer than the model's limit is truncated with a note; `truncate=True` omits the note,
    `truncate=False` raises ContextLengthError instead. `lengths` is called with the number of
    tokens of each text, prompt included, and the number read. UsageError if there is no text or one
    without tokens; ModelError for a model without the capability `text_embedder`, or without a
    tokenizer.
    """
    if isinstance(texts, str):
        raise UsageError("`embed` takes a list of texts, got one text", hint="write `[text]`")
    if not texts or batch_size < 1:
        given = f"got {len(texts)} and {batch_size}"
        raise UsageError(f"`embed` needs at least 1 text and a batch of at least 1, {given}")
    long = LongTexts(truncate, lengths)
    if "image_text" in model.capabilities:
        named = _only_texts(model, texts)
        return _beside_images(model, named, normalize, prompt_name, prompt, long, dimensions)
    recipe = recipe_of(model)
    first = chosen_prompt(recipe.prompts, recipe.default_prompt, prompt_name, prompt)
    begun = [first + text if isinstance(text, str) else text for text in texts]
    tokens = _tokens(model, recipe, begun, long)
    skipped = 0 if recipe.pooling.include_prompt else _prompt_tokens(model, recipe, first)
    vectors = _pooled(model, recipe, tokens, batch_size, skipped, progress)
    steps = _steps(recipe, normalize)
    for step in steps:
        vectors = step(vectors)
    return first_elements(vectors, dimensions, bool(steps) and isinstance(steps[-1], Normalize))


def first_elements(vectors: np.ndarray, dimensions: int | None, normal: bool) -> np.ndarray:
    """Truncate vectors [N, D] to `dimensions`, and renormalize them if they were `normal`.

    UsageError if they have fewer.
    """
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= vectors.shape[1]:
        raise UsageError(
            f"the vectors of this model have {vectors.shape[1]} dimensions, asked for {dimensions}",
            argument="dimensions",
        )
    cut = np.ascontiguousarray(vectors[:, :dimensions])
    return Normalize()(cut) if normal and dimensions < vectors.shape[1] else cut


def _only_texts(model: LoadedModel, texts: Sequence[str | Sequence[int]]) -> list[str]:
    """Return texts; UsageError for a text given as tokens."""
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise UsageError(f"`{model.name}` takes texts, not their tokens")
    return found


def _beside_images(
    model: LoadedModel,
    texts: Sequence[str],
    normalize: bool | None,
    name: str | None,
    prompt: str | None,
    long: LongTexts,
    dimensions: int | None,
) -> np.ndarray:
    """Return the vectors of texts in the space of images."""
    if name is not None:
        raise UsageError(f"a `{model.kind}` model has no named prompts", hint="give the `prompt`")
    vectors = text_vectors(model, [(prompt or "") + text for text in texts], long)
    vectors = Normalize()(vectors) if normalize else vectors
    return first_elements(vectors, dimensions, bool(normalize))


def cosine_similarities(vectors: np.ndarray) -> np.ndarray:
    """Return the pairwise cosine similarities of vectors [N, D], f32 [N, N]."""
    unit = Normalize()(vectors)
    return unit @ unit.T


def similarities(vectors: np.ndarray, function: Similarity = "cosine") -> np.ndarray:
    """Return the pairwise similarities of vectors [N, D], f32 [N, N].

    `function` is one of sentence-transformers': the cosine, the dot product, or a negative
    distance. `EmbeddingRecipe.similarity` names a model's function.
    """
    match function:
        case "cosine":
            return cosine_similarities(vectors)
        case "dot":
            return vectors @ vectors.T
        case "euclidean":
            # Row by row: all differences at once would take N times the memory.
            return np.stack([-np.sqrt(np.square(vectors - row).sum(1)) for row in vectors])
        case "manhattan":
            return np.stack([-np.abs(vectors - row).sum(1) for row in vectors])


class Embedded(Struct, frozen=True, eq=False):
    """Vectors [N, D], and their pairwise similarities [N, N] if requested."""

    vectors: np.ndarray
    similarities: np.ndarray | None


def embed_either(
    model: LoadedModel,
    texts: Sequence[str] = (),
    images: Sequence[Image] = (),
    batch_size: int = BATCH_SIZE,
    normalize: bool | None = None,
    *,
    similarity: bool = False,
    prompt_name: str | None = None,
    truncate: bool | None = None,
    dimensions: int | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> Embedded:
    """Return `embed_images` of the images, if there are any, else `embed` of the texts.

    With `similarity`, models of images and texts use the cosine, others the function named by their
    files.
    """
    if images:
        size = min(batch_size, IMAGES)
        vectors = embed_images(model, images, size, bool(normalize), progress=progress)
        vectors = first_elements(vectors, dimensions, bool(normalize))
    else:
        vectors = embed(
            model, texts, batch_size, normalize, prompt_name=prompt_name, truncate=truncate,
            dimensions=dimensions, lengths=lengths, progress=progress,
        )  # fmt: skip
    if not similarity:
        return Embedded(vectors, None)
    of_texts = not images and "image_text" not in model.capabilities
    function = recipe_of(model).similarity if of_texts else "cosine"
    return Embedded(vectors, similarities(vectors, function))


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


def _cased(model: LoadedModel, recipe: EmbeddingRecipe, text: str) -> str:
    return model.tokenizer.lowered(text) if recipe.lower_case else text


def _tokens(
    model: LoadedModel,
    recipe: EmbeddingRecipe,
    texts: Sequence[str | Sequence[int]],
    long: LongTexts,
) -> list[list[int]]:
    embedder = model.text_embedder()
    limit = _longest(model, recipe)

    def read(text: str | Sequence[int]) -> tuple[list[int], TextLength]:
        if isinstance(text, str):
            return model.tokenizer.encode_within(_cased(model, recipe, text), limit)
        return list(text[:limit]), TextLength(len(text), min(len(text), limit))

    found = [read(text) for text in texts]
    long.told([length for _, length in found], limit)
    for row, _ in found:
        require_known_tokens(row, embedder.vocab_size)
    return [row for row, _ in found]


def _prompt_tokens(model: LoadedModel, recipe: EmbeddingRecipe, prompt: str) -> int:
    if not prompt:
        return 0
    # A text keeps its end tokens even if the prompt alone is too long.
    length = model.tokenizer.prefix_length(_cased(model, recipe, prompt))
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
        # Texts are pooled one by one: sums over padding may round differently.
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
    """Return the steps after pooling; truncated vectors are renormalized."""
    steps = recipe.steps
    if normalize is None:
        return steps
    cut = tuple(step for step in steps[-1:] if isinstance(step, Truncate))
    whole = steps[: len(steps) - len(cut)]
    ends_normal = bool(whole) and isinstance(whole[-1], Normalize)
    if normalize:
        return steps if ends_normal and not cut else (*steps, Normalize())
    return (*whole[:-1], *cut) if ends_normal else steps
