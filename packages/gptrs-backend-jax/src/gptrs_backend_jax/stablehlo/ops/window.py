"""Reductions of sliding windows: pooling and running totals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import SymbolicDim
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.layout import padded
from gptrs_backend_jax.stablehlo.ops.reduction import is_identity
from gptrs_backend_jax.stablehlo.ops.regions import combined_by
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import Value, as_tensor, spread

MAX_WINDOW: Final = 1024
"""Most elements of a window whose region is applied one by one."""


@dataclass(frozen=True, slots=True)
class Movement:
    """How a window moves, one entry an axis."""

    window: list[int]
    strides: list[int]
    low: list[int]
    high: list[int]
    gaps: list[int]
    """The distance between elements of a window."""
    base: list[int]
    """The distance of the elements of the operand, zeros between them."""


@converts("reduce_window", knows=True)
def reduce_window(node: Node, *operands: Value) -> list[Tensor]:
    """Return the combination of the elements under each position of a window."""
    count = len(operands) // 2
    inputs = [as_tensor(each) for each in operands[:count]]
    firsts = operands[count:]
    move = movement(node, inputs[0].rank)
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    results: list[Tensor] = []
    for x, kind, first in zip(inputs, kinds, firsts, strict=True):
        plain = kind in ("add", "mul", "max", "min") and not x.dtype.is_bool
        if kind is None or not plain or not is_identity(kind, first, x.dtype):
            return _by_elements(node, inputs, firsts, move)
        results.append(_reduced(x, kind, first, move))
    return results


def movement(node: Node, rank: int) -> Movement:
    """Return how the window of an operation moves over an operand of this rank."""
    ones = [1] * rank
    padding = node.integers("padding", [0, 0] * rank)
    return Movement(
        node.integers("window_dimensions"),
        node.integers("window_strides", ones),
        padding[::2],
        padding[1::2],
        node.integers("window_dilations", ones),
        node.integers("base_dilations", ones),
    )


def _reduced(x: Tensor, kind: str, first: Value, move: Movement) -> Tensor:
    totals = _running(x, kind, move)
    if totals is not None:
        return totals
    low, high = ([min(each, 0) for each in sides] for sides in (move.low, move.high))
    trimmed = padded(x, first, low, high, [step - 1 for step in move.base])
    pads = [(max(a, 0), max(b, 0)) for a, b in zip(move.low, move.high, strict=True)]
    return primitives.reduce_window(
        trimmed, _window_kind(kind), move.window, move.strides, pads, move.gaps
    )


def _window_kind(kind: str) -> primitives.WindowKind:
    match kind:
        case "add":
            return "sum"
        case "mul":
            return "prod"
        case "max":
            return "max"
        case _:
            return "min"


def _running(x: Tensor, kind: str, move: Movement) -> Tensor | None:
    """Return running totals along an axis, which JAX writes as a window of the whole axis."""
    wide = [axis for axis, size in enumerate(move.window) if size != 1]
    ones = [1] * x.rank
    if len(wide) != 1 or move.strides != ones or move.gaps != ones or move.base != ones:
        return None
    (axis,) = wide
    reach = move.window[axis] - 1
    sides = (move.low[axis], move.high[axis])
    if isinstance(x.shape[axis], SymbolicDim) or reach + 1 < x.shape[axis]:
        return None
    others = [a for a in range(x.rank) if a != axis]
    if any(move.low[a] or move.high[a] for a in others) or sides not in ((reach, 0), (0, reach)):
        return None
    return primitives.cumulative(x, _window_kind(kind), axis, reverse=sides == (0, reach))


def _by_elements(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], move: Movement
) -> list[Tensor]:
    """Return any reduction of windows: the region is applied to one place of it after another."""
    size = math.prod(move.window)
    if size > MAX_WINDOW:
        raise node.error(f"combines {size} elements by a region that is none of PTIR")
    wide = [
        padded(x, first, move.low, move.high, [step - 1 for step in move.base])
        for x, first in zip(inputs, firsts, strict=True)
    ]
    dims = [
        max((dim - ((w - 1) * gap + 1)) // step + 1, 0)
        for dim, w, gap, step in zip(
            wide[0].shape, move.window, move.gaps, move.strides, strict=True
        )
    ]
    totals = [spread(as_tensor(each), dims) for each in firsts]
    if 0 in dims:
        return totals
    for place in itertools.product(*map(range, move.window)):
        starts = [index * gap for index, gap in zip(place, move.gaps, strict=True)]
        parts = [primitives.slice(x, starts, dims, move.strides) for x in wide]
        totals = list(node.lifted(0, [*totals, *parts], dims))
    return totals
