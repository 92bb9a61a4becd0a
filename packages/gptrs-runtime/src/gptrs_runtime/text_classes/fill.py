"""Words for the masked places of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Filling
from gptrs_runtime.text_batches import BATCH_SIZE, text_batches
from gptrs_runtime.text_classes.classify import softmax
from gptrs_runtime.text_classes.tag import whole_texts
from gptrs_runtime.tokenization.special_tokens import named_tokens


def mask_of(model: LoadedModel) -> str:
    """Return what stands for a masked token, such as `[MASK]`; ModelError if the files lack it."""
    known = named_tokens(model.files).get("mask_token")
    if known is None:
        usual = (text for text in ("[MASK]", "<mask>") if model.tokenizer.number(text) is not None)
        known = next(usual, None)
    if known is None:
        raise ModelError(
            f"the files of `{model.name}` name no token for what is masked",
            hint="add `mask_token` to tokenizer_config.json",
        )
    return known


def fill(
    model: LoadedModel,
    texts: Sequence[str],
    top_k: int = 5,
    batch_size: int = BATCH_SIZE,
    *,
    progress: Progress | None = None,
) -> list[list[tuple[Filling, ...]]]:
    """Return the `top_k` likeliest tokens for each masked place of each text, the best first.

    A place is masked by `mask_of(model)`. Each is predicted with all others masked. UsageError for
    no text, one without a masked place, or one that is longer than the model takes; ModelError for
    a model without the capability `masked_lm`, or without a tokenizer.
    """
    lm = model.masked_lm()
    if isinstance(texts, str) or not texts or batch_size < 1 or top_k < 1:
        raise UsageError("`fill` needs a list of texts, and a batch and `top_k` of at least 1")
    rows = whole_texts(model, texts)
    places = _masked(model, [row.tokens for row in rows])
    found: list[list[tuple[Filling, ...]]] = [[] for _ in texts]
    done, tokens = 0, [row.tokens for row in rows]
    for batch in text_batches(tokens, batch_size, model.backend, lm.context_length):
        if progress is not None:
            progress(done, len(texts))
        length = batch.tokens.shape[1]
        flat = [i * length + place for i, row in enumerate(batch.rows) for place in places[row]]
        logits = iter(lm.predict_tokens(batch.tokens, batch.mask, np.array(flat)))
        for row in batch.rows:
            found[row] = [_best(model, next(logits), top_k) for _ in places[row]]
        done += len(batch.rows)
    if progress is not None:
        progress(done, len(texts))
    return found


def _masked(model: LoadedModel, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    mask = mask_of(model)
    number = model.tokenizer.number(mask)
    places = [[place for place, token in enumerate(row) if token == number] for row in rows]
    for index, own in enumerate(places):
        if not own:
            raise UsageError(f"text {index} has no masked place", hint=f"write {quoted(mask)}")
    return places


def _best(model: LoadedModel, logits: np.ndarray, top_k: int) -> tuple[Filling, ...]:
    scores = softmax(logits)
    best = np.argsort(-logits, kind="stable")[:top_k]
    decode = model.tokenizer.decode
    return tuple(
        Filling(int(token), decode([int(token)], special=True), float(scores[token]))
        for token in best
    )
