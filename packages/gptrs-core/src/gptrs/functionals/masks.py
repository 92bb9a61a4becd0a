"""Masks of attention: which keys a query sees, as i1 tensors that broadcast to the scores."""

from __future__ import annotations

from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import expand, require_integer, require_shape, splat
from gptrs.ir import dtypes


@functional
def causal_mask(queries: int, keys: int, offset: Tensor | int = 0) -> Tensor:
    """i1 [queries, keys]: query i, at position `offset + i`, sees the keys 0 .. offset + i.

    `offset` is a number or a rank-0 integer tensor, so that one compiled step serves all positions;
    a negative one leaves the first queries without a key. UsageError for sizes below 0 and another
    kind of offset.
    """
    _require_sizes("causal_mask", queries=queries, keys=keys)
    last = _positions("causal_mask", queries, keys, offset)
    return primitives.compare(_columns((queries, keys)), last, "le")


@functional
def sliding_window_mask(queries: int, keys: int, window: int, offset: Tensor | int = 0) -> Tensor:
    """i1 [queries, keys]: the query at position p sees the keys p - window + 1 .. p.

    These are the last `window` keys up to its own (Beltagy et al. 2020, the causal form that
    Mistral uses). Query i is at position `offset + i`, as in `causal_mask`. UsageError for a window
    below 1, sizes below 0 and another kind of offset.
    """
    name = "sliding_window_mask"
    _require_sizes(name, queries=queries, keys=keys)
    if window < 1:
        raise UsageError(f"`{name}` needs a window of at least 1 key, got {window}")
    last, column = _positions(name, queries, keys, offset), _columns((queries, keys))
    before = primitives.sub(last, splat(window, dtypes.si64, last.shape))
    not_after = primitives.compare(column, last, "le")
    return primitives.bit_and(not_after, primitives.compare(column, before, "gt"))


@functional
def padding_mask(lengths: Tensor, size: int, side: Literal["right", "left"] = "right") -> Tensor:
    """i1 [B, 1, 1, size]: sequence b of a batch has `lengths[b]` keys, the other ones are padding.

    `lengths` is an integer tensor [B]. With side "right" the padding follows the keys, with "left"
    it precedes them, so that all sequences end together. Give it to `attention` as the mask, with
    `causal=True` where needed. UsageError for other lengths, a size below 0 and another side.
    """
    if side not in ("right", "left"):
        raise UsageError(f'`padding_mask` knows side="right" and "left", got {side!r}')
    _require_sizes("padding_mask", size=size)
    require_integer("padding_mask", lengths=lengths)
    if lengths.rank != 1:
        raise UsageError(f"`padding_mask` needs `lengths` of rank 1, got `{lengths.type}`")
    shape = (lengths.shape[0], 1, 1, size)
    count = primitives.reshape(primitives.cast(lengths, dtypes.si64), (*shape[:3], 1))
    if side == "right":
        return primitives.compare(_columns(shape), expand(count, shape), "lt")
    first = primitives.sub(splat(size, dtypes.si64, count.shape), count)
    return primitives.compare(_columns(shape), expand(first, shape), "ge")


def _require_sizes(name: str, **sizes: int) -> None:
    for label, size in sizes.items():
        if size < 0:
            raise UsageError(f"`{name}` needs `{label}` of at least 0, got {size}")


def _columns(shape: tuple[int, ...]) -> Tensor:
    """Return the index of the key at each position."""
    return primitives.iota(shape, -1, dtypes.si64)


def _positions(name: str, queries: int, keys: int, offset: Tensor | int) -> Tensor:
    """Return the position of the query for each of [queries, keys], in si64."""
    start = splat(offset, dtypes.si64) if isinstance(offset, int) else offset
    require_integer(name, offset=start)
    require_shape(name, "offset", start, ())
    shape = (queries, keys)
    row = primitives.iota(shape, 0, dtypes.si64)
    return primitives.add(row, expand(primitives.cast(start, dtypes.si64), shape))
