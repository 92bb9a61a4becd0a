"""How far a model is from another one on a text, such as a quantized one from what it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_observe.measure.perplexity import Perplexity, checked_window, window_spans
from gptrs_runtime.embedding.embed import embed
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel

_ROWS = 64
"""Positions whose logits are made f64 at once."""


@dataclass(frozen=True)
class TextDivergence:
    """Next tokens of two language models: `model` and `reference` are their perplexities.

    `kl` is the mean, over all scored positions, of the Kullback-Leibler divergence of the model
    from the reference, in nats, `kl_error` the standard error of that mean, `kl_worst` the 99th
    percentile. `top1` is the share of positions at which both find the same token likeliest.
    """

    kl: float
    kl_error: float
    kl_worst: float
    top1: float
    model: Perplexity
    reference: Perplexity


@dataclass(frozen=True)
class VectorDivergence:
    """Cosines between the vectors that two embedders give to each of `texts` texts."""

    texts: int
    cosine: float
    least_cosine: float


def compare_text(
    model: LoadedModel,
    reference: LoadedModel,
    tokens: Sequence[int],
    window: int | None = None,
    progress: Progress | None = None,
) -> TextDivergence:
    """Run both on windows of a text, as `measure_perplexity` does, and compare what they predict.

    ModelError for models of other vocabularies, or that generate no text; UsageError for a text of
    less than two tokens, unknown tokens, or a window beyond the context.
    """
    first, second = model.causal_lm(), reference.causal_lm()
    if first.vocab_size != second.vocab_size:
        raise ModelError(
            f"{quoted(model.name)} has {first.vocab_size} tokens, {quoted(reference.name)}"
            f" {second.vocab_size}: their predictions cannot be compared"
        )
    context = min(first.context_length, second.context_length)
    size, stride = checked_window(context, window, None)
    require_known_tokens(tokens, first.vocab_size)
    if len(tokens) < 2:
        raise UsageError(f"{len(tokens)} token(s) predict nothing, 2 are needed")
    row = np.asarray(tokens, np.int64)
    spans = list(window_spans(len(row), size, stride))
    found: list[np.ndarray] = []
    for number, (begin, start, end) in enumerate(spans):
        if progress is not None:
            progress(number, len(spans))
        piece = row[np.newaxis, begin:end]
        scored = slice(start - 1 - begin, end - 1 - begin)
        ours, theirs = (lm.forward(piece)[0][scored] for lm in (first, second))
        found.append(_figures(ours, theirs, row[start:end]))
    if progress is not None:
        progress(len(spans), len(spans))
    kl, same, cost, reference_cost = np.concatenate(found, axis=1)
    shape = (len(row), kl.size, len(spans), size, stride)
    return TextDivergence(
        kl=float(kl.mean()),
        kl_error=_error(kl),
        kl_worst=float(np.quantile(kl, 0.99)),
        top1=float(same.mean()),
        model=Perplexity(float(cost.mean()), _error(cost), *shape),
        reference=Perplexity(float(reference_cost.mean()), _error(reference_cost), *shape),
    )


def compare_vectors(
    model: LoadedModel, reference: LoadedModel, texts: Sequence[str]
) -> VectorDivergence:
    """Embed texts with both and compare the vectors; errors are those of `embed`."""
    ours, theirs = (embed(each, texts).astype(np.float64) for each in (model, reference))
    if ours.shape != theirs.shape:
        raise ModelError(
            f"vectors of {ours.shape[1]} numbers cannot be compared with those of {theirs.shape[1]}"
        )
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    with np.errstate(invalid="ignore"):
        cosines = (ours * theirs).sum(axis=1) / lengths
    return VectorDivergence(len(texts), float(cosines.mean()), float(cosines.min()))


def _figures(ours: np.ndarray, theirs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return f64 [4, N] of logits f32 [N, V]: divergence, same best, and -log p of each target."""
    parts: list[np.ndarray] = []
    for start in range(0, len(targets), _ROWS):
        piece = slice(start, start + _ROWS)
        log_p, log_q = _log_softmax(ours[piece]), _log_softmax(theirs[piece])
        kl = (np.exp(log_q) * (log_q - log_p)).sum(axis=1)
        same = log_p.argmax(axis=1) == log_q.argmax(axis=1)
        chosen = targets[piece, np.newaxis]
        costs = [-np.take_along_axis(each, chosen, axis=1)[:, 0] for each in (log_p, log_q)]
        parts.append(np.stack([np.maximum(kl, 0), same, *costs]))
    return np.concatenate(parts, axis=1)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0
