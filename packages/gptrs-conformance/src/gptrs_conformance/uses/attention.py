"""Uses of attention, its masks and its cache."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal
from gptrs_conformance.uses.activation import safe_softmax

CACHE, AT = 7, np.array(3)


def attended(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    visible: np.ndarray | bool = True,
    bias: np.ndarray | float = 0,
    scale: float | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    """Attention with the keys and values repeated for the heads that share them."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ np.swapaxes(k, -1, -2) * factor
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    return safe_softmax(np.where(visible, scores + bias, -np.inf)) @ v


def seen(queries: int, keys: int, offset: int, window: int | None = None) -> np.ndarray:
    """The keys that each query sees, by a loop over positions."""
    mask = np.zeros((queries, keys), bool)
    for query in range(queries):
        at = offset + query
        first = 0 if window is None else at - window + 1
        mask[query, max(first, 0) : max(at + 1, 0)] = True
    return mask


def heads(queries: int, keys: int, query_heads: int, key_heads: int) -> tuple[np.ndarray, ...]:
    """Query, key and value of a batch of 2, of depth 4, and 6 for the value."""
    return (
        normal(3, 2, query_heads, queries, 4),
        normal(4, 2, key_heads, keys, 4),
        normal(5, 2, key_heads, keys, 6),
    )


def _grid() -> Iterator[Use]:
    """Every sharing of heads with every number of queries, causal."""
    for query_heads, key_heads in ((4, 4), (4, 2), (4, 1)):
        for queries, keys in ((1, 6), (3, 5), (5, 5)):
            mask = seen(queries, keys, keys - queries)
            yield Use(
                "attention",
                heads(queries, keys, query_heads, key_heads),
                lambda q, k, v: F.attention(q, k, v, causal=True),
                lambda q, k, v, mask=mask: attended(q, k, v, mask),
                f"{query_heads} heads on {key_heads}, {queries} of {keys} positions",
                torch=lambda torch, q, k, v, mask=mask: _torch(torch, q, k, v, torch.tensor(mask)),
            )


def _torch(torch, q, k, v, mask=None, scale=None):  # pyright: ignore
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=True
    )


def _updated(cache: np.ndarray, new: np.ndarray, position: np.ndarray) -> np.ndarray:
    after = cache.copy()
    after[:, :, int(position) : int(position) + new.shape[2]] = new
    return after


def _decoded(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    keys, values = F.update_cache(keys, k, at), F.update_cache(values, v, at)
    return F.attention(q, keys, values, causal=True, offset=at)


def _decoded_whole(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    at: np.ndarray,
) -> np.ndarray:
    length = int(at) + q.shape[2]
    keys, values = _updated(keys, k, at), _updated(values, v, at)
    mask = seen(q.shape[2], length, int(at))
    return attended(q, keys[:, :, :length], values[:, :, :length], mask)


SHARED = heads(3, 5, 4, 2)
SPOTS = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [1, 1, 1, 0, 0]], bool)
BIAS = np.where(SPOTS, normal(6, 2, 1, 3, 5), np.float32(-np.inf))


def _blind() -> Iterator[Use]:
    """Fully masked queries give 0, for every kind of mask; few queries and many."""
    for queries, keys in ((1, 3), (3, 5), (21, 12)):
        shared = heads(queries, keys, 4, 2)
        if queries > 1:  # the first query of the second batch sees some keys
            shared[0][1, 2, 0, 1] = np.nan
        label = f"{queries} of {keys} positions"
        spots = np.random.default_rng(queries).random((2, 1, queries, keys)) < 0.5
        spots[0, :, 0] = spots[1, :, -1] = False
        mask = np.where(spots, normal(6, 2, 4, queries, keys), np.float32(-np.inf))
        for kind, given in (("hides all keys", spots), ("of -inf alone", mask)):
            yield Use("attention", (*shared, given), F.attention,
                lambda q, k, v, m: attended(q, k, v, m if m.dtype == bool else True,
                    0 if m.dtype == bool else m),
                f"a mask {kind}, {label}", torch=_torch)  # fmt: skip
        at = -queries // 2
        yield Use("attention", shared,
            lambda q, k, v, at=at: F.attention(q, k, v, causal=True, offset=at),
            lambda q, k, v, at=at: attended(q, k, v, seen(q.shape[2], k.shape[2], at)),
            f"before the first position, {label}")  # fmt: skip
    yield Use("attention", (*heads(9, 4, 4, 2), np.array([0, 3])),
        lambda q, k, v, lengths: F.attention(q, k, v, F.padding_mask(lengths, 4), causal=True),
        lambda q, k, v, lengths: attended(
            q, k, v, seen(9, 4, -5) & (np.arange(4) < lengths[:, None, None, None])),
        "more queries than keys, and a text of none")  # fmt: skip
    yield Use("attention", heads(3, 0, 4, 2), F.attention,
        lambda q, k, v: np.zeros((2, 4, 3, 6)), "no keys")  # fmt: skip
    yield Use("attention", (*SHARED, np.full((3, 5), np.finfo(np.float32).min)), F.attention,
        lambda q, k, v, bias: attended(q, k, v, bias=np.zeros_like(bias), scale=0),
        "the least finite mask hides nothing", small_floats=False, torch=_torch)  # fmt: skip


USES = (
    *_grid(),
    *_blind(),
    Use("attention", SHARED, F.attention, attended, "everything seen", torch=_torch),
    Use("attention", SHARED, lambda q, k, v: F.attention(q, k, v, scale=0.3),
        lambda q, k, v: attended(q, k, v, scale=0.3), "scale",
        torch=lambda torch, q, k, v: _torch(torch, q, k, v, scale=0.3)),
    Use("attention", SHARED, lambda q, k, v: F.attention(q, k, v, softcap=2.0),
        lambda q, k, v: attended(q, k, v, softcap=2.0), "softcap"),
    Use("attention", SHARED, lambda q, k, v: F.attention(q, k, v, causal=True, offset=1),
        lambda q, k, v: attended(q, k, v, seen(3, 5, 1)), "offset",
        torch=lambda torch, q, k, v: _torch(torch, q, k, v, torch.tensor(seen(3, 5, 1)))),
    Use("attention", SHARED, lambda q, k, v: F.attention(q, k, v, causal=True, window=2),
        lambda q, k, v: attended(q, k, v, seen(3, 5, 2, 2)), "window",
        torch=lambda torch, q, k, v: _torch(torch, q, k, v, torch.tensor(seen(3, 5, 2, 2)))),
    Use("attention", (*SHARED, SPOTS), F.attention, attended, "i1 mask", torch=_torch),
    Use("attention", (*SHARED, BIAS), F.attention,
        lambda q, k, v, bias: attended(q, k, v, bias=bias), "float mask", torch=_torch),
    # More keys and queries than a tile of a kernel has, and all settings together.
    Use("attention", (*heads(37, 75, 4, 2), np.random.default_rng(8).random((2, 1, 37, 75)) < 0.8),
        lambda q, k, v, mask: F.attention(
            q, k, v, mask, scale=0.4, causal=True, window=40, offset=30, softcap=3.0),
        lambda q, k, v, mask: attended(q, k, v, mask & seen(37, 75, 30, 40), 0, 0.4, 3.0),
        "many positions, all settings"),
    Use("attention", (*SHARED, np.array([4, 5])),
        lambda q, k, v, lengths: F.attention(q, k, v, F.padding_mask(lengths, 5), causal=True),
        lambda q, k, v, lengths: attended(
            q, k, v, seen(3, 5, 2) & (np.arange(5) < lengths[:, None, None, None])),
        "causal and padded"),
    Use("attention", (*heads(2, 2, 4, 2), *(normal(7, 2, 2, CACHE, d) for d in (4, 6)), AT),
        _decoded, _decoded_whole, "cached"),
    Use("causal_mask", (), lambda: F.causal_mask(2, 4, 1), lambda: np.tri(2, 4, 1, bool)),
    Use("sliding_window_mask", (AT,), lambda at: F.sliding_window_mask(3, 7, 2, at),
        lambda at: seen(3, 7, 3, 2)),
    Use("padding_mask", (np.array([0, 2, 3]),), lambda lengths: F.padding_mask(lengths, 3),
        lambda lengths: (np.arange(3) < lengths[:, None])[:, None, None]),
    Use("padding_mask", (np.array([0, 2, 3]),), lambda lengths: F.padding_mask(lengths, 3, "left"),
        lambda lengths: (np.arange(3) >= 3 - lengths[:, None])[:, None, None], "left"),
    Use("update_cache", (normal(1, 1, 2, 6, 3), normal(2, 1, 2, 2, 3), AT),
        F.update_cache, _updated),
)  # fmt: skip
