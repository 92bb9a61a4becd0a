"""The perplexity of a model on a text, measured in overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import UsageError
from gptrs.progress import Progress
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel

DEFAULT_WINDOW: Final = 1024
_ROWS: Final = 64
"""Positions whose logits are made f64 at once."""


class Perplexity(Struct, frozen=True):
    """The outcome: `nll` is the mean of -log p of each of the `scored` tokens, in nats.

    `error` is the standard error of that mean, NaN for a single token. Of a text of `tokens`, all
    but the first are scored. `nbytes` are those of the text, 0 where only its tokens are known.
    """

    nll: float
    error: float
    tokens: int
    scored: int
    windows: int
    window: int
    stride: int
    nbytes: int = 0

    @property
    def bits_per_byte(self) -> float:
        """Return the bits of all scored tokens for each byte of the text."""
        return self.nll * self.scored / math.log(2) / self.nbytes

    @property
    def perplexity(self) -> float:
        """Return exp(nll), infinite where that is too large."""
        return math.exp(self.nll) if self.nll < 709 else math.inf

    @property
    def standard_error(self) -> float:
        """Return the standard error of the perplexity, to first order."""
        return self.perplexity * self.error

    def __str__(self) -> str:
        """Return the perplexity and its standard error, if there is one."""
        error = "" if math.isnan(self.error) else f" +- {self.standard_error:.4f}"
        return f"{self.perplexity:.4f}{error}"


def measure_perplexity(
    model: LoadedModel,
    tokens: Sequence[int],
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Return the perplexity of `model` on a text of at least two tokens.

    The model sees windows of `window` tokens (the context, at most DEFAULT_WINDOW), each `stride`
    (half a window) after the one before; each token is scored once, in the first window that has
    it, so that all but those of the first window follow `window - stride` tokens at least. The last
    window ends with the text and is as long as the others. UsageError for a text too short, unknown
    tokens, or a window and stride that do not fit; ModelError for a model that generates no text.
    """
    lm = model.causal_lm()
    window, stride = checked_window(lm.context_length, window, stride)
    require_known_tokens(tokens, lm.vocab_size)
    if len(tokens) < 2:
        raise UsageError(f"perplexity needs at least 2 tokens, got {len(tokens)}")
    row = np.asarray(tokens, np.int64)
    spans = list(window_spans(len(row), window, stride))
    costs: list[np.ndarray] = []
    for number, (begin, first, end) in enumerate(spans):
        if progress is not None:
            progress(number, len(spans))
        logits = lm.forward(row[np.newaxis, begin:end])[0]
        costs.append(_costs(logits[first - 1 - begin : end - 1 - begin], row[first:end]))
    if progress is not None:
        progress(len(spans), len(spans))
    every = np.concatenate(costs)
    error = float(every.std(ddof=1) / math.sqrt(every.size)) if every.size > 1 else math.nan
    mean = float(every.mean())
    return Perplexity(mean, error, len(row), every.size, len(spans), window, stride)


def text_perplexity(
    model: LoadedModel,
    text: str,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Return `measure_perplexity` of the tokens of a text."""
    found = measure_perplexity(model, model.prompt_tokens(text), window, stride, progress)
    return replace(found, nbytes=len(text.encode()))


def checked_window(context: int, window: int | None, stride: int | None) -> tuple[int, int]:
    """Return both, with their defaults; UsageError if they do not fit the context."""
    window = min(context, DEFAULT_WINDOW) if window is None else window
    if not 2 <= window <= context:
        raise UsageError(f"a window has 2 to {context} tokens, the context; got {window}")
    stride = window // 2 if stride is None else stride
    if not 1 <= stride < window:
        raise UsageError(f"a stride is 1 to {window - 1} tokens, below the window; got {stride}")
    return window, stride


def window_spans(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield each window as its begin, the first token that it scores, and its end."""
    begin, scored = 0, 1
    while scored < count:
        end = begin + window
        if end >= count:
            begin, end = max(0, count - window), count
        yield begin, scored, end
        begin, scored = begin + stride, end


def _costs(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return -log softmax(logits)[targets] of logits f32 [N, V], f64 [N]."""
    parts: list[np.ndarray] = []
    for start in range(0, len(targets), _ROWS):
        rows = logits[start : start + _ROWS].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(rows, targets[start : start + _ROWS, np.newaxis], axis=1)
        parts.append(np.log(np.exp(rows).sum(axis=1)) - chosen[:, 0])
    return np.concatenate(parts)
