"""Uses of the functionals that draw: tokens, and what dropout keeps."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.cases.quantization import uniform, words
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal
from gptrs_conformance.uses.activation import softmax


def drawn(seed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return what `rng_uniform` gives in f32."""
    count = int(np.prod(shape))
    found = words((int(seed[0]), int(seed[1])), count, dtypes.f32)
    return np.array([uniform(word, dtypes.f32) for word in found]).reshape(shape)


def order(logits: np.ndarray) -> np.ndarray:
    """Tokens by descending logits, the smaller one of equal ones first."""
    return np.argsort(-logits, axis=-1, kind="stable")


def _kept(logits: np.ndarray, in_order: np.ndarray) -> np.ndarray:
    """Return the logits at `in_order`, i1 in sorted order, of the same shape."""
    mask = np.zeros(logits.shape, bool)
    np.put_along_axis(mask, order(logits), in_order, -1)
    return np.where(mask, logits, -np.inf)


def top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """The k first of the order."""
    return _kept(logits, np.broadcast_to(np.arange(logits.shape[-1]) < k, logits.shape))


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep those with a cumulative probability below p before them."""
    probabilities = softmax(np.take_along_axis(logits, order(logits), -1))
    return _kept(logits, np.cumsum(probabilities, -1) - probabilities < p)


def min_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep those with at least p of the largest probability."""
    probabilities = softmax(logits)
    return np.where(probabilities >= p * probabilities.max(-1, keepdims=True), logits, -np.inf)


def _counted(tokens: np.ndarray, size: int, mask: np.ndarray | None = None) -> np.ndarray:
    rows = tokens.reshape(-1, tokens.shape[-1])
    kept = np.ones(rows.shape, bool) if mask is None else mask.reshape(rows.shape)
    counts = [np.bincount(row[use], minlength=size) for row, use in zip(rows, kept, strict=True)]
    return np.array(counts).reshape(*tokens.shape[:-1], size)


def _gumbel(logits: np.ndarray, seed: np.ndarray) -> np.ndarray:
    u = np.maximum(drawn(seed, logits.shape), 2.0**-25)
    return np.argmax(logits - np.log(-np.log(u)), -1)


LOGITS = 2 * normal(1, 2, 3, 9)
TIES = np.array([[1, 3, 2, 3, 3, 0], [0, 0, 0, 0, 0, 0]], np.float32)
HIDDEN = np.where(np.arange(9) % 2, LOGITS, np.float32(-np.inf))
SEED = np.array([3, 1], np.uint64)
TOKENS = np.array([[[0, 3, 3], [8, 8, 8], [1, 2, 0]], [[4, 4, 0], [5, 6, 7], [2, 2, 1]]])
USED = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0]], bool)
COUNTS = _counted(TOKENS, 9)

DROPPED = normal(1, 3, 7)
DROPOUT_SEED = np.array([11, 5], np.uint64)
USES = (
    Use("dropout", (DROPPED,), lambda x: F.dropout(x, 0.4), lambda x: x,
        torch=lambda torch, x: torch.nn.functional.dropout(x, 0.4, training=False)),
    Use("dropout", (DROPPED, DROPOUT_SEED), lambda x, seed: F.dropout(x, 0.4, seed, training=True),
        lambda x, seed: np.where(drawn(seed, x.shape) >= 0.4, x / 0.6, 0), "training"),
    Use("greedy", (TIES,), F.greedy, lambda x: np.argmax(x, -1),
        torch=lambda torch, x: torch.tensor([1, 0])),
    Use("sample", (LOGITS, SEED), F.sample, _gumbel),
    Use("sample", (HIDDEN, SEED), F.sample, _gumbel, "hidden tokens"),
    Use("apply_temperature", (LOGITS,), lambda x: F.apply_temperature(x, 0.7),
        lambda x: (x - x.max(-1, keepdims=True)) / 0.7,
        torch=lambda torch, x: (x - x.amax(-1, keepdim=True)) / 0.7),
    Use("top_k_filter", (LOGITS,), lambda x: F.top_k_filter(x, 4), lambda x: top_k(x, 4),
        torch=lambda torch, x: torch.where(
            x < torch.topk(x, 4).values[..., -1:], -torch.inf, x)),
    Use("top_k_filter", (TIES,), lambda x: F.top_k_filter(x, 2), lambda x: top_k(x, 2), "ties"),
    Use("top_k_filter", (TIES,), lambda x: F.top_k_filter(x, 9), lambda x: x, "more than all"),
    Use("top_p_filter", (LOGITS,), lambda x: F.top_p_filter(x, 0.8), lambda x: top_p(x, 0.8)),
    Use("top_p_filter", (TIES,), lambda x: F.top_p_filter(x, 0.4), lambda x: top_p(x, 0.4), "ties"),
    Use("top_p_filter", (HIDDEN,), lambda x: F.top_p_filter(x, 0.8), lambda x: top_p(x, 0.8),
        "hidden tokens"),
    Use("min_p_filter", (LOGITS,), lambda x: F.min_p_filter(x, 0.1), lambda x: min_p(x, 0.1),
        torch=lambda torch, x: torch.where(
            torch.softmax(x, -1) < 0.1 * torch.softmax(x, -1).amax(-1, True), -torch.inf, x)),
    Use("token_counts", (TOKENS,), lambda x: F.token_counts(x, 9), lambda x: _counted(x, 9),
        torch=lambda torch, x: torch.nn.functional.one_hot(x, 9).sum(-2)),
    Use("token_counts", (TOKENS[0], USED), lambda x, mask: F.token_counts(x, 9, mask),
        lambda x, mask: _counted(x, 9, mask), "mask"),
    Use("repetition_penalty", (LOGITS, COUNTS), lambda x, n: F.repetition_penalty(x, n, 1.3),
        lambda x, n: np.where(n > 0, np.where(x < 0, x * 1.3, x / 1.3), x),
        torch=lambda torch, x, n: torch.where(
            n > 0, torch.where(x < 0, x * 1.3, x / 1.3), x)),
    Use("presence_penalty", (LOGITS, COUNTS), lambda x, n: F.presence_penalty(x, n, 0.5),
        lambda x, n: x - 0.5 * (n > 0), torch=lambda torch, x, n: x - 0.5 * (n > 0)),
    Use("frequency_penalty", (LOGITS, COUNTS), lambda x, n: F.frequency_penalty(x, n, 0.5),
        lambda x, n: x - 0.5 * n, torch=lambda torch, x, n: x - 0.5 * n),
)  # fmt: skip
