"""Whether a value is causal attention: its results in trials tell, and give the scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from msgspec import Struct

from gptrs.api.importers import is_number, is_symbol
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F

if TYPE_CHECKING:
    from gptrs_onnx.language.trials import Trial
    from gptrs_onnx.onnx_ir import ir

_CLOSE: Final = {2: 2e-2, 4: 2e-4, 8: 1e-6}
"""The relative error of attention by the bytes of its elements."""

_LEAST: Final = 1e-2
"""The weight of a key from which a score is derived."""


class Layout(Struct, frozen=True):
    """The axes of queries or results: `shape`, joined to three axes, which `order` brings to
    tokens, heads, width."""

    shape: tuple[int, ...]
    joined: tuple[int, ...]
    order: tuple[int, int, int]

    def rows(self, x: Tensor) -> Tensor:
        """Return [N, H, D] of a tensor in this layout."""
        return F.transpose(F.reshape(x, self.joined), self.order)

    def tensor(self, rows: Tensor) -> Tensor:
        """Return the tensor in this layout of rows [N, H, D]."""
        back = np.argsort(self.order)
        return F.reshape(F.transpose(rows, [int(axis) for axis in back]), self.shape)

    def array_rows(self, array: np.ndarray) -> np.ndarray:
        """Return [N, H, D] of an array in this layout, of another number of tokens."""
        shape = [-1 if is_symbol(dim) else dim for dim in self.joined]
        return array.reshape(shape).transpose(self.order)


def layout_of(shape: Sequence[int], tokens: int, width: int) -> Layout | None:
    """Return the layout of a tensor with `tokens` rows and heads of a width; None if unknown."""
    dims = tuple(shape)
    inner = dims[1:] if len(dims) > 2 and dims[0] == 1 and tokens in dims[1:] else dims
    if len(inner) == 2 and inner[0] == tokens and is_number(inner[1]):
        if inner[1] % width:
            return None
        return Layout(dims, (tokens, inner[1] // width, width), (0, 1, 2))
    if len(inner) != 3 or inner[2] != width:
        return None
    if inner[0] == tokens:
        return Layout(dims, inner, (0, 1, 2))
    return Layout(dims, inner, (1, 0, 2)) if inner[1] == tokens else None


class Attention(Struct, frozen=True):
    """Causal attention with a scale and a window, whose results have a layout."""

    scale: float
    window: int | None
    layout: Layout


def attention_in(
    value: ir.Value,
    query: ir.Value,
    keys_values: Sequence[ir.Value],
    trials: Sequence[Trial],
    layout: Layout,
    window: int | None,
) -> Attention | None:
    """Return a value as attention of a query to keys and values; None for other values."""
    scale: float | None = None
    made: Layout | None = None
    for trial in trials:
        result = trial.array(value)
        keys, values = (trial.array(each)[0].astype(np.float64) for each in keys_values)
        queries = layout.array_rows(trial.array(query)).astype(np.float64)
        if made is None:
            made = _result_layout(result, queries.shape, trial.new, layout)
            if made is None:
                return None
        found = made.array_rows(result).astype(np.float64)
        if found.shape != queries.shape:
            return None
        groups = queries.shape[1] // keys.shape[0]
        if queries.shape[1] % keys.shape[0]:
            return None
        keys, values = (np.repeat(each, groups, 0) for each in (keys, values))
        if scale is None:
            scale = _scale(queries, keys, values, found, result.dtype.itemsize)
            if scale is None:
                return None
        # In f64, so that the tolerance is that of the graph's own arithmetic.
        expected = _attended(queries, keys, values, scale, window)
        error = np.abs(expected - found).max() / np.abs(expected).max()
        # `not <`, as NaN is not close either.
        if not error < _CLOSE[result.dtype.itemsize]:
            return None
    if scale is None or made is None:
        return None
    return Attention(scale, window, made)


def _result_layout(
    result: np.ndarray, rows: tuple[int, ...], tokens: int, layout: Layout
) -> Layout | None:
    """Return the layout of results for a step of `tokens`; None for an unusual one."""
    _, heads, width = rows
    free = next(dim for dim in layout.joined if is_symbol(dim))
    for shape in (
        (1, heads, free, width),
        (heads, free, width),
        (1, free, heads, width),
        (1, free, heads * width),
        (free, heads, width),
        (free, heads * width),
    ):
        if result.shape == tuple(tokens if is_symbol(dim) else dim for dim in shape):
            return layout_of(shape, free, width)
    return None


def _scale(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, found: np.ndarray, itemsize: int
) -> float | None:
    """Return the factor of the scores with which one token attends, None without one.

    Results are sums of few values, so that the weights follow from them; the logarithms of weights
    are the scores, up to a constant.
    """
    products: list[np.ndarray] = []
    scores: list[np.ndarray] = []
    for head in range(keys.shape[0]):
        weights = cast("np.ndarray", np.linalg.pinv(values[head].T) @ found[0, head])
        kept = weights > _LEAST  # the logarithm of a smaller one is mostly rounding
        if kept.sum() < 2:
            continue
        logs, dots = np.log(weights[kept]), keys[head][kept] @ queries[0, head]
        scores.append(logs - logs.mean())
        products.append(dots - dots.mean())
    if not scores:
        return None
    x, y = np.concatenate(products), np.concatenate(scores)
    scale = float(x @ y / (x @ x))
    if not np.abs(x * scale - y).max() < 5 * _CLOSE[itemsize] * max(1.0, float(np.abs(y).max())):
        return None
    return _nearest_root(scale, _CLOSE[itemsize])


def _nearest_root(scale: float, close: float) -> float:
    """Return the intended scale: 1, or a root of the reciprocal of an integer."""
    for power in (2, 4):
        # A scale that was fitted is off by rounding; the exact one keeps logits equal to those of
        # other runtimes to the last digits.
        base = round(scale**-power)
        if base and abs(base ** (-1 / power) / scale - 1) < close:
            return float(base ** (-1 / power))
    return scale


def _attended(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, window: int | None
) -> np.ndarray:
    """Return attention [N, H, D] of the last N of L positions to keys and values [H, L, D]."""
    tokens, length = len(queries), int(keys.shape[1])
    scores = np.einsum("nhd,hld->nhl", queries, keys) * scale
    ages = np.arange(length - tokens, length)[:, None] - np.arange(length)
    seen = np.logical_and(ages >= 0, ages < (length if window is None else window))
    scores = np.where(seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("nhl,hld->nhd", weights, values)
