"""Classes of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import UsageError
from gptrs.progress import Progress
from gptrs_runtime.forward import class_label
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import LabelScore
from gptrs_runtime.text_batches import BATCH_SIZE, text_batches
from gptrs_runtime.text_classes.scores import class_scores
from gptrs_runtime.tokenization.encoded_text import EncodedText, Lengths, LongTexts

Text = str | tuple[str, str]
"""A text, or a pair that is read as one."""
_CONFIG = "tokenizer_config.json"
_SEGMENTS = "token_type_ids"


def classify(
    model: LoadedModel,
    texts: Sequence[Text],
    batch_size: int = BATCH_SIZE,
    *,
    truncate: bool | None = None,
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[tuple[LabelScore, ...]]:
    """Return the classes of each text or pair `(first, second)`, the best first.

    Scores are as the files of the model ask for: a softmax over several classes, a sigmoid of one
    or with `problem_type` `multi_label_classification`, the logit itself for a regression. A text
    of more tokens than the model reads is cut, of a pair the longer one, which a note says;
    `truncate` and `lengths` are as of `embed`. UsageError if there is no text; ModelError for a
    model without the capability `text_classifier`, or without a tokenizer.
    """
    logits = text_logits(model, texts, batch_size, progress, LongTexts(truncate, lengths))
    scores = class_scores(model.config, logits.shape[1])(logits)
    names = [class_label(model.config, index) for index in range(logits.shape[1])]
    best = np.argsort(-scores, axis=1, kind="stable")
    return [
        tuple(LabelScore(names[int(index)], float(row[index])) for index in order)
        for row, order in zip(scores, best, strict=True)
    ]


def text_logits(
    model: LoadedModel,
    texts: Sequence[Text],
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
    long: LongTexts | None = None,
) -> np.ndarray:
    """Return the logits of each text or pair, f32 [N, classes]; errors as of `classify`."""
    classifier = model.text_classifier()
    if isinstance(texts, str):
        raise UsageError("a list of texts is needed, got one text", hint="write `[text]`")
    if not texts or batch_size < 1:
        raise UsageError(
            "at least 1 text and a batch of at least 1 are needed, got"
            f" {len(texts)} and {batch_size}"
        )
    rows = _encoded(model, texts, long or LongTexts())
    tokens = [row.tokens for row in rows]
    has_segments = _has_segments(model)
    segments = [row.segments if has_segments else () for row in rows]
    found: list[np.ndarray] = []
    order: list[int] = []
    for batch in text_batches(tokens, batch_size, model.backend, classifier.context_length):
        if progress is not None:
            progress(len(order), len(texts))
        logits = classifier.classify_texts(batch.tokens, batch.laid(segments), batch.mask)
        found.append(logits[: len(batch.rows)])
        order.extend(batch.rows)
    if progress is not None:
        progress(len(texts), len(texts))
    stacked = np.concatenate(found)
    result = np.empty_like(stacked)
    result[order] = stacked
    return result


def longest_text(model: LoadedModel) -> int:
    """Return the most tokens of a text: of the model, or fewer as tokenizer_config.json says."""
    context = model.token_reader().context_length
    settings = model.files.read_json(_CONFIG) or {}
    limit = Fields(settings, f"in `{_CONFIG}`").count("model_max_length")
    return context if limit is None else min(limit, context)


def _has_segments(model: LoadedModel) -> bool:
    """Return whether the tokenizer hands segments to the model: unless its inputs are listed."""
    inputs = (model.files.read_json(_CONFIG) or {}).get("model_input_names")
    return not isinstance(inputs, list) or _SEGMENTS in inputs


def _encoded(model: LoadedModel, texts: Sequence[Text], long: LongTexts) -> list[EncodedText]:
    limit, known = longest_text(model), model.token_reader().vocab_size
    pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
    rows = [model.tokenizer.encode_pair(first, second, limit) for first, second in pairs]
    long.told([row.length for row in rows], limit)
    for row in rows:
        require_known_tokens(row.tokens, known)
    return rows
