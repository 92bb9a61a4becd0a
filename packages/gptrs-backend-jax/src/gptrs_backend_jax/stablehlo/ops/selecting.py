"""The gradient of a pool: each window chooses an element, to which its update goes."""

from __future__ import annotations

import itertools
import math

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.layout import padded
from gptrs_backend_jax.stablehlo.ops.regions import combined_by
from gptrs_backend_jax.stablehlo.ops.window import MAX_WINDOW, Movement, movement
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import (
    Known,
    Value,
    as_tensor,
    filled,
    scalar,
    size_tensor,
)


@converts("select_and_scatter", knows=True)
def select_and_scatter(node: Node, x: Value, updates: Value, first: Value) -> Tensor:
    """Return `first` everywhere, combined with the update of each window at what it chooses."""
    operand, given = as_tensor(x), as_tensor(updates)
    (kind,) = combined_by(node.conversion.module, node.operation.regions[1])
    if kind not in ("add", "mul", "max", "min") or given.dtype.is_bool or given.dtype.is_complex:
        raise node.error("combines updates by a region that is none of PTIR")
    places = _chosen(node, operand, given.shape, movement(node, operand.rank))
    count = math.prod(operand.shape)
    outside = filled(size_tensor(count, places.dtype), places)  # windows of padding alone
    places = primitives.select(primitives.compare(places, filled(0, places), "lt"), outside, places)
    table = primitives.broadcast_to(as_tensor(first), (count + 1,))
    flat = (math.prod(given.shape),)
    rows, values = primitives.reshape(places, flat), primitives.reshape(given, flat)
    written = primitives.scatter_reduce(table, rows, values, 0, kind)
    return primitives.reshape(primitives.slice(written, [0], [count]), operand.shape)


def _chosen(node: Node, x: Tensor, windows: tuple[int, ...], move: Movement) -> Tensor:
    """Return for each window the place of the element that it chooses, -1 where it has none."""
    size = math.prod(move.window)
    if size > MAX_WINDOW:
        raise node.error(f"chooses among {size} elements")
    gaps = [step - 1 for step in move.base]
    count = math.prod(x.shape)
    is_small = not isinstance(count, SymbolicDim) and count < 2**31
    numbers = dtypes.si32 if is_small else dtypes.si64
    places = primitives.reshape(primitives.iota((count,), 0, numbers), x.shape)
    none = Known(np.array(-1), numbers)
    values = primitives.pad(x, move.low, move.high, gaps)
    places = padded(places, none, move.low, move.high, gaps)
    best: tuple[Tensor, Tensor] | None = None
    for place in itertools.product(*map(range, move.window)):
        value, number = (
            primitives.slice(each, place, windows, move.strides) for each in (values, places)
        )
        best = (value, number) if best is None else _better(node, best, (value, number), windows)
    assert best is not None, "a window has elements"
    return best[1]


def _better(
    node: Node,
    best: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
    windows: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Return the pairs that the region keeps; one of the padding is never chosen over another."""
    zero = primitives.broadcast_to(scalar(0, best[1].dtype), windows)
    lacks, is_padding = (primitives.compare(each[1], zero, "lt") for each in (best, other))
    (prefers,) = node.lifted(0, [best[0], other[0]], windows)
    kept = primitives.bit_or(is_padding, primitives.bit_and(prefers, primitives.logical_not(lacks)))
    value, number = (primitives.select(kept, a, b) for a, b in zip(best, other, strict=True))
    return value, number
