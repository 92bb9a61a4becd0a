"""How well texts belong to images, by a model whose vectors of both lie in one space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.embedding.embed_images import IMAGES, Image, embed_images
from gptrs_runtime.embedding.steps import Normalize
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import BATCH_SIZE
from gptrs_runtime.text_classes.scores import sigmoid, softmax
from gptrs_runtime.tokenization.encoded_text import Lengths, LongTexts
from gptrs_runtime.tokenization.special_tokens import named_tokens


@dataclass(frozen=True, eq=False)
class Matches:
    """Scores of images and texts, each [images, texts].

    `logits` f32 are what the model gives, scaled cosines. `probabilities` f64 of an image sum to 1
    over the texts, or stand each for themselves, as `independent_scores` of the model says.
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
    """Return the token that texts are filled up with."""
    name = named_tokens(model.files).get("pad_token")
    token = None if name is None else model.tokenizer.number(name)
    if token is None:
        raise ModelError(
            f"the files of `{model.name}` name no token of padding, which it needs",
            hint="add `pad_token` to tokenizer_config.json",
        )
    return token
