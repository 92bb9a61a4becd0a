"""Measures of the distance of arrays from a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.functionals.dispatch.benchmark_policy import absolute_errors
from gptrs.ir.tensor_type import TensorType
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted
from gptrs_runtime.embedding.embed import embed
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.perplexity import Perplexity, checked_window, window_spans
from gptrs_runtime.results import Number


class Agreement(Struct, frozen=True):
    """The absolute errors of an array called `name`, of `type` in IR syntax.

    `scale` is the range of the reference, largest minus smallest number; if these are equal, their
    magnitude.
    """

    name: str
    type: str
    max_error: float
    mean_error: float
    scale: float

    @property
    def relative_max_error(self) -> float:
        """Largest error, relative to the scale."""
        return share(self.max_error, self.scale)

    @property
    def relative_mean_error(self) -> float:
        """Mean error, relative to the scale."""
        return share(self.mean_error, self.scale)


def agreement(name: str, ours: np.ndarray, theirs: np.ndarray) -> Agreement:
    """Compare two non-empty arrays of floats; ModelError if their shapes differ.

    Where one of two numbers is NaN or infinite and the other is not the same, the error is
    infinite.
    """
    if ours.shape != theirs.shape:
        raise ModelError(
            f"{name} cannot be compared: `{TensorType.of(ours)}` here,"
            f" `{TensorType.of(theirs)}` in the reference"
        )
    error = absolute_errors(ours, theirs)
    return Agreement(
        name=name,
        type=str(TensorType.of(ours)),
        max_error=float(error.max()),
        mean_error=float(error.mean()),
        scale=_scale(theirs),
    )


def top_agreement(ours: np.ndarray, theirs: np.ndarray, count: int) -> float:
    """Return the share of the `count` largest scores of each row, [..., N], that both have."""
    count = min(count, ours.shape[-1])
    pairs = zip(_best(ours, count), _best(theirs, count), strict=True)
    common = [np.intersect1d(mine, other).size for mine, other in pairs]
    return float(np.mean(common)) / count


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest of each row, [rows, count]."""
    flat = scores.reshape(-1, scores.shape[-1])
    # Stable: of equal scores both take the same, else ties would count as disagreement.
    return np.argsort(-flat, axis=-1, kind="stable")[:, :count]


def least_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the least cosine similarity of vectors [..., D] at one position; NaN for zeros."""
    wide, reference = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1) * np.linalg.norm(reference, axis=-1)
    with np.errstate(invalid="ignore"):
        return float(((wide * reference).sum(axis=-1) / lengths).min())


def share(error: float, scale: float) -> float:
    """Return an error relative to a scale, infinite if that is 0 and the error is not."""
    if error == 0:
        return 0.0
    return float(error / scale) if scale else math.inf


def _scale(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0
    # The range, not the magnitude: logits far from 0 with small differences would hide errors that
    # change the choice.
    return float(finite.max() - finite.min()) or float(np.abs(finite).max())


# Agreement of an imported model's outputs with expected ones.


def output_agreements(
    ours: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> tuple[Agreement, ...]:
    """Compare outputs by the names in `expected`.

    Integers that differ are infinitely far apart relative to their range. UsageError if nothing is
    expected, or for an expected output that does not exist; ModelError if shapes or kinds of
    elements differ.
    """
    unknown = [name for name in expected if name not in ours]
    if unknown or not expected:
        raise UsageError(
            f"no output is called {listed(unknown)}" if unknown else "nothing is expected",
            hint=f"the outputs are {listed(ours, most=8)}",
        )
    return tuple(_agreement(name, ours[name], wanted) for name, wanted in expected.items())


def _agreement(name: str, ours: np.ndarray, theirs: np.ndarray) -> Agreement:
    exact = theirs.dtype.kind in "iub"
    if exact != (ours.dtype.kind in "iub") or ours.shape != theirs.shape:
        raise ModelError(
            f"`{name}` cannot be compared: `{TensorType.of(ours)}` here,"
            f" `{TensorType.of(theirs)}` expected"
        )
    if not theirs.size:
        return Agreement(name, str(TensorType.of(ours)), 0.0, 0.0, 0.0)
    found = agreement(name, ours, theirs)
    if not exact:
        return found
    # A scale of 0 makes any difference infinite: an index or a class that is off by one is wrong.
    return Agreement(name, found.type, found.max_error, found.mean_error, 0.0)


# Summaries of hidden states: range, mean, spread, and the share of NaN and infinities.


class StateSummary(Struct, frozen=True):
    """Statistics of one state, in f64 over its finite numbers; NaN if it has none.

    `type` is in IR syntax. `non_finite` is the share of NaN and infinities, `norm` the Euclidean
    length of the state as one vector.
    """

    name: str
    type: str
    mean: Number
    std: Number
    min: Number
    max: Number
    non_finite: Number
    norm: Number


def summarize(name: str, state: np.ndarray) -> StateSummary:
    """Return the statistics of `state`, a non-empty array of floats."""
    finite = state[np.isfinite(state)].astype(np.float64)
    values = finite if finite.size else np.array([np.nan])
    return StateSummary(
        name=name,
        type=str(TensorType.of(state)),
        mean=float(values.mean()),
        std=float(values.std()),
        min=float(values.min()),
        max=float(values.max()),
        non_finite=1 - finite.size / state.size,
        norm=float(np.sqrt(np.square(values).sum())),
    )


# The divergence of one model from another on a text, such as a quantized model from the original.


_ROWS = 64
"""Positions whose logits are converted to f64 at a time."""


class TextDivergence(Struct, frozen=True):
    """Next tokens of two language models: `model` and `reference` are their perplexities.

    `kl` is the mean, over all scored positions, of the Kullback-Leibler divergence of the model
    from the reference, in nats, `kl_error` the standard error of that mean, `kl_worst` the 99th
    percentile. `top1` is the share of positions at which both have the same likeliest token.
    """

    kl: float
    kl_error: float
    kl_worst: float
    top1: float
    model: Perplexity
    reference: Perplexity


class VectorDivergence(Struct, frozen=True):
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
    """Run both on windows of a text, like `measure_perplexity`, and compare their predictions.

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
        raise UsageError(f"predictions need at least 2 tokens, got {len(tokens)}")
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
    """Embed texts with both and compare the vectors; raises the errors of `embed`."""
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
        # Rounding makes divergences of equal distributions slightly negative.
        parts.append(np.stack([np.maximum(kl, 0), same, *costs]))
    return np.concatenate(parts, axis=1)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    rows = logits.astype(np.float64)
    # Otherwise exp overflows from 710 on, and a sum of f32 logits would lose what quantization
    # changes.
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0
