"""Reductions: by PTIR ops if their region is recognized, otherwise by a loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.api.importers import scalar, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.conversion import (
    Known,
    Node,
    Value,
    as_tensor,
    converts,
    filled,
    spread,
)
from gptrs_backend_jax.stablehlo.ops.control_flow import (
    Expression,
    call,
    combined_by,
    compared,
    expressions,
    param,
)

_JOINED: Final = {
    "add": primitives.add,
    "mul": primitives.mul,
    "max": primitives.maximum,
    "min": primitives.minimum,
    "and": primitives.bit_and,
    "or": primitives.bit_or,
}


@converts("reduce")
def reduce(node: Node, *operands: Value) -> Sequence[Tensor]:
    """Combine the elements along some axes."""
    count = len(operands) // 2
    inputs = [as_tensor(each) for each in operands[:count]]
    firsts = operands[count:]
    axes = sorted(node.integers("dimensions"))
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    if all(_is_reduced(kind, x.dtype) for kind, x in zip(kinds, inputs, strict=True)):
        return [
            _reduced(x, str(kind), axes, first)
            for x, kind, first in zip(inputs, kinds, firsts, strict=True)
        ]
    extreme = _extreme(node, inputs, firsts, axes)
    return _by_loop(node, inputs, firsts, axes) if extreme is None else extreme


def _is_reduced(kind: str | None, dtype: DType) -> bool:
    return kind in _JOINED and (kind not in ("max", "min") or not dtype.is_complex)


def bool_kind(kind: str, dtype: DType) -> str:
    """Return the logical kind for a numeric kind."""
    return (
        {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(kind, kind)
        if dtype.is_bool
        else kind
    )


def _reduced(x: Tensor, kind: str, axes: Sequence[int], first: Value) -> Tensor:
    kind = bool_kind(kind, x.dtype)
    match kind:
        case "add" | "mul":
            made = primitives.reduce(x, "sum" if kind == "add" else "prod", axes)
        case "max" | "min" | "and" | "or":
            made = primitives.reduce(x, kind, axes)
        case _:
            raise AssertionError(kind)
    if is_identity(kind, first, x.dtype):
        return made
    return _JOINED[kind](filled(as_tensor(first), made), made)


def is_identity(kind: str, value: Value, dtype: DType) -> bool:
    """Return whether combining with a value changes nothing."""
    if not isinstance(value, Known) or value.is_symbolic or value.array.ndim:
        return False
    held = value.array.astype(dtype.numpy)[()]
    match kind:
        case "add" | "or":
            return not held
        case "mul":
            return bool(held == 1)
        case "and":
            return bool(held == True) if dtype.is_bool else bool(np.invert(held) == 0)  # noqa: E712
        case _:
            return bool(held == identity(kind, dtype))


def identity(kind: str, dtype: DType) -> float:
    """Return the identity element of a kind: 0, 1, or the least or greatest value of a type."""
    if kind in ("add", "mul"):
        return 0 if kind == "add" else 1
    if dtype.is_float:
        return -np.inf if kind == "max" else np.inf
    signed = dtype.kind == "signed"
    least = -(2 ** (dtype.bits - 1)) if signed else 0
    return least if kind == "max" else 2 ** (dtype.bits - signed) - 1


def _extreme(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], axes: Sequence[int]
) -> list[Tensor] | None:
    """Return the extreme elements and their indices (argmax, argmin); None for other regions.

    The region is that of JAX's argmax and argmin: the first of equal elements wins, and NaN wins
    against numbers.
    """
    if len(inputs) != 2 or len(axes) != 1 or not _counts(node, axes[0]):
        return None
    dtype = inputs[0].dtype
    found = expressions(node.conversion.module, node.operation.regions[0])
    kind = next((k for k in ("max", "min") if found in _extreme_regions(k)), None)
    if kind is None or dtype.is_bool or dtype.is_complex:
        return None
    if not (is_identity(kind, firsts[0], dtype) and is_identity("add", firsts[1], dtypes.si64)):
        return None
    x, numbers = inputs
    size = x.shape[axes[0]]
    if isinstance(size, SymbolicDim) or size == 0:
        return None
    choose = primitives.argmax if kind == "max" else primitives.argmin
    values = primitives.reduce(x, "max" if kind == "max" else "min", axes)
    indices = choose(x, axes[0])
    return [values, primitives.cast(indices, numbers.dtype)]


def _counts(node: Node, axis: int) -> bool:
    """Return whether the second operand is the index along `axis`."""
    made = node.definition(1)
    if made is None or made.name not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return False
    return made.attributes.get("iota_dimension") == axis


def _extreme_regions(kind: str) -> list[list[Expression | None]]:
    """Return JAX's regions for floats, where NaN wins, and for integers."""
    a, i, b, j = (param(number) for number in range(4))
    better = compared("GT" if kind == "max" else "LT", a, b)
    regions: list[list[Expression | None]] = []
    for wins in (call("or", better, compared("NE", a, a)), better):
        ties = call("and", compared("EQ", a, b), compared("LT", i, j))
        first = call("or", wins, ties)
        regions.append([call("select", wins, a, b), call("select", first, i, j)])
    return regions


def _by_loop(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], axes: Sequence[int]
) -> list[Tensor]:
    """Return any reduction: the region is applied to whole slices, one step along the axes."""
    rank = inputs[0].rank
    others = [axis for axis in range(rank) if axis not in axes]
    shape = [inputs[0].shape[axis] for axis in others]
    steps = 1
    for axis in axes:
        steps = inputs[0].shape[axis] * steps
    lines = [
        primitives.reshape(primitives.transpose(x, [*axes, *others]), [steps, *shape])
        for x in inputs
    ]
    count = len(inputs)

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        return node.lifted(0, values, shape)

    first = [spread(as_tensor(each), shape) for each in firsts]
    carried, _ = primitives.scan(body, first, lines)
    return list(carried[:count])


# Gather and scatter as reads and writes of whole rows, with a common numbering.
#
# The axes of an operand are either indexed or read whole. The indexed ones are flattened to one
# axis of rows, on which `take` and `scatter_reduce` work.


class RowLayout(Struct, frozen=True):
    """The layout of windows in the rows of an operand.

    `window` has a size for each axis of the operand; `removed` lists the axes of size 1 that
    windows lack; `batching` has pairs of axes of the operand and of the indices (without the axis
    of vectors); `mapped` has the axis of each entry of an index vector.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    removed: tuple[int, ...]
    batching: tuple[tuple[int, int], ...]
    mapped: tuple[int, ...]
    is_reading: bool

    @property
    def chosen(self) -> list[int]:
        """The axes that make rows."""
        batching = [axis for axis, _ in self.batching]
        return [
            axis
            for axis in range(len(self.shape))
            if axis in self.removed or axis in batching or not self._is_whole(axis)
        ]

    def _is_whole(self, axis: int) -> bool:
        if not self.is_reading and axis in self.mapped:
            return False  # a window that does not begin at 0 lies outside: it is not written
        return self.window[axis] == self.shape[axis]

    @property
    def whole(self) -> list[int]:
        """The axes that are read or written whole."""
        chosen = self.chosen
        return [axis for axis in range(len(self.shape)) if axis not in chosen]

    @property
    def kept(self) -> list[int]:
        """The axes of `chosen` that windows have."""
        batching = [axis for axis, _ in self.batching]
        return [x for x in self.chosen if x not in self.removed and x not in batching]

    @property
    def count(self) -> int:
        """The number of rows."""
        return math.prod(self.shape[axis] for axis in self.chosen)

    def as_rows(self, x: Tensor) -> Tensor:
        """Return the operand as [rows, whole axes..]."""
        turned = primitives.transpose(x, self.chosen + self.whole)
        return primitives.reshape(turned, [self.count, *(self.shape[a] for a in self.whole)])

    def from_rows(self, rows: Tensor) -> Tensor:
        """Return [rows, whole axes..] as the operand."""
        order = self.chosen + self.whole
        parts = primitives.reshape(rows, [self.shape[axis] for axis in order])
        return primitives.transpose(parts, [order.index(axis) for axis in range(len(order))])


def index_vectors(indices: Tensor, axis: int) -> Tensor:
    """Return indices with their vectors on the last axis; `axis` may be the rank."""
    if axis == indices.rank:
        return primitives.reshape(indices, [*indices.shape, 1])
    order = [each for each in range(indices.rank) if each != axis]
    return primitives.transpose(indices, [*order, axis])


def row_numbers(layout: RowLayout, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the rows of each window, [batch.., kept window axes..], and which windows are inside.

    For reads, starts are clamped so that all windows are inside, and there is no mask.
    """
    lead = vectors.shape[:-1]
    dtype = _position_type(layout, vectors.dtype)
    shape = [*lead, *(layout.window[axis] for axis in layout.kept)]
    total: Tensor | None = None
    inside: Tensor | None = None
    stride = 1
    for axis in reversed(layout.chosen):
        start, is_inside = _start(layout, vectors, axis, dtype)
        if is_inside is not None:
            inside = is_inside if inside is None else primitives.bit_and(inside, is_inside)
        number = None if start is None else _at_lead(start, shape)
        if axis in layout.kept and layout.window[axis] != 1:
            own = primitives.iota(shape, len(lead) + layout.kept.index(axis), dtype)
            number = own if number is None else primitives.add(number, own)
        if number is not None:
            scaled = _scaled(number, stride)
            total = scaled if total is None else primitives.add(total, scaled)
        stride = layout.shape[axis] * stride
    if total is None:
        total = primitives.broadcast_to(scalar(0, dtype), shape)
    return total, None if inside is None else _at_lead(inside, shape)


def _position_type(layout: RowLayout, given: DType) -> DType:
    """Return si32 if it can hold every row, and the indices are not wider."""
    count = layout.count
    is_small = not isinstance(count, SymbolicDim) and count < 2**31
    return dtypes.si32 if is_small and (given.bits < 32 or given is dtypes.si32) else dtypes.si64


def _at_lead(x: Tensor, shape: Sequence[int]) -> Tensor:
    dims = [*x.shape, *([1] * (len(shape) - x.rank))]
    return primitives.broadcast_to(primitives.reshape(x, dims), shape)


def _scaled(x: Tensor, stride: int) -> Tensor:
    if not isinstance(stride, SymbolicDim) and stride == 1:
        return x
    return primitives.mul(x, filled(size_tensor(stride, x.dtype), x))


def _start(
    layout: RowLayout, vectors: Tensor, axis: int, dtype: DType
) -> tuple[Tensor | None, Tensor | None]:
    """Return the start of windows on an axis (None: 0), and whether they are inside."""
    lead = vectors.shape[:-1]
    for own, other in layout.batching:
        if own == axis:
            return primitives.iota(lead, other, dtype), None
    if axis not in layout.mapped:
        return None, None
    column = [*([0] * len(lead)), layout.mapped.index(axis)]
    start = primitives.reshape(primitives.slice(vectors, column, [*lead, 1]), lead)
    start = primitives.cast(start, dtype) if start.dtype is not dtype else start
    least = filled(0, start)
    most = filled(size_tensor(layout.shape[axis] - layout.window[axis], dtype), start)
    bounded = primitives.clamp(start, least, most)
    if layout.is_reading:
        return bounded, None
    return bounded, primitives.compare(start, bounded, "eq")
