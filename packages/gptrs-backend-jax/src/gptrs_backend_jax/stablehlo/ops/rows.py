"""Gather and scatter as reads and writes of whole rows: the one numbering that both share.

The axes of an operand are those that indices choose on, and those that are read whole. With the
first ones put together to one axis of rows, `take` and `scatter_reduce` do the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.values import filled, scalar, size_tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How windows of an operand lie in its rows.

    `window` has a size for each axis of the operand, `removed` the axes of size 1 that windows do
    not have, `batching` pairs of axes of the operand and of the indices (without the axis of
    vectors), `mapped` the axis that each entry of an index vector is for.
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
            return False  # a window that begins elsewhere than at 0 lies outside: it is not written
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
    """Return indices with their vectors on the last axis; `axis` may be one past the last."""
    if axis == indices.rank:
        return primitives.reshape(indices, [*indices.shape, 1])
    order = [each for each in range(indices.rank) if each != axis]
    return primitives.transpose(indices, [*order, axis])


def row_numbers(layout: RowLayout, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the rows of each window, [batch.., kept window axes..], and which windows lie inside.

    When reading, places are clamped so that all of them do, and there is no mask.
    """
    lead = vectors.shape[:-1]
    dtype = _position_type(layout, vectors.dtype)
    shape = [*lead, *(layout.window[axis] for axis in layout.kept)]
    total: Tensor | None = None
    inside: Tensor | None = None
    stride = 1
    for axis in reversed(layout.chosen):
        place, is_inside = _start(layout, vectors, axis, dtype)
        if is_inside is not None:
            inside = is_inside if inside is None else primitives.bit_and(inside, is_inside)
        number = None if place is None else _at_lead(place, shape)
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
    """Return si32 where it holds every row, and the indices come in no wider type."""
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
    """Return where windows begin on an axis, None for 0, and whether they lie inside."""
    lead = vectors.shape[:-1]
    for own, other in layout.batching:
        if own == axis:
            return primitives.iota(lead, other, dtype), None
    if axis not in layout.mapped:
        return None, None
    column = [*([0] * len(lead)), layout.mapped.index(axis)]
    place = primitives.reshape(primitives.slice(vectors, column, [*lead, 1]), lead)
    place = primitives.cast(place, dtype) if place.dtype is not dtype else place
    least = filled(0, place)
    most = filled(size_tensor(layout.shape[axis] - layout.window[axis], dtype), place)
    bounded = primitives.clamp(place, least, most)
    if layout.is_reading:
        return bounded, None
    return bounded, primitives.compare(place, bounded, "eq")
