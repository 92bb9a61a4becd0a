"""Reading and writing at indices, given by numbers or tensors."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, cast

from gptrs.api.importers import is_number, is_symbol, size_tensor, within_axis
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import Operand, axis_of, converted, operand

ScatterKind = Literal["add", "mul", "max", "min", "replace"]
_KINDS: dict[str, ScatterKind] = {
    "add": "add",
    "sum": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}
_END = 2**31
MAX_BOUNDARIES: Final = 4096
"""Most boundaries of buckets, since each element is compared with all of them."""


def counted_from_start(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the start; negative ones count from the end."""
    whole = F.cast(indices, dtypes.si64)
    return F.where(whole < 0, whole + size_tensor(size), whole)


def _bounds(x: Tensor, axis: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the start and length of a slice; sizes may be free."""
    size = x.shape[axis]
    low = _clamped_bound(0 if start is None else start, size)
    high = size if end is None or (is_number(end) and end >= _END) else _clamped_bound(end, size)
    if is_number(low) and is_number(high) and high < low:
        return low, 0
    return low, high - low


def _clamped_bound(bound: int, size: int) -> int:
    if is_number(bound) and bound < 0:
        bound = size + bound
        return max(bound, 0) if is_number(bound) else bound
    if is_number(bound, 0):
        return 0
    if is_symbol(bound) and bound == size:
        return size
    return min(bound, size)


def _counted(index: int, size: int) -> int:
    """Return an index counted from the start."""
    return size + index if is_number(index) and index < 0 else index


@converts("slice", "slice_copy")
def sliced(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Return a part of x along an axis."""
    axis = axis_of(dim, x)
    first, span = _bounds(x, axis, start, end)
    if first == 0 and span == x.shape[axis] and step == 1:
        return x
    return _part(x, axis, first, span, step)


def _part(x: Tensor, axis: int, first: int, span: int, step: int) -> Tensor:
    count = span if step == 1 else (span + step - 1) // step
    starts, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], sizes[axis], strides[axis] = (0 if count == 0 else first), count, step
    return primitives.slice(x, starts, sizes, strides)


@converts("select", "select_copy")
def selected(x: Tensor, dim: int, index: int) -> Tensor:
    """Return one slice of x along an axis, without the axis."""
    axis = axis_of(dim, x)
    start = _counted(index, x.shape[axis])
    return F.squeeze(_part(x, axis, start, 1, 1), axis)


@converts("slice_scatter")
def slice_scattered(
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """Return x with a part of it replaced."""
    axis = axis_of(dim, x)
    first, span = _bounds(x, axis, start, end)
    if step != 1:
        return _scattered_steps(x, source, axis, first, step)
    rest = x.shape[axis] - first - span
    parts = [_part(x, axis, 0, first, 1)] if not is_number(first, 0) else []
    parts.append(converted(source, x.dtype))
    if not is_number(rest, 0):
        parts.append(_part(x, axis, first + span, rest, 1))
    return F.concat(parts, axis) if len(parts) > 1 else parts[0]


def _scattered_steps(x: Tensor, source: Tensor, axis: int, first: int, step: int) -> Tensor:
    indices = F.arange(source.shape[axis]) * step + size_tensor(first)
    shaped = F.reshape(indices, [-1 if i == axis else 1 for i in range(x.rank)])
    return F.scatter(x, F.broadcast_to(shaped, source.shape), converted(source, x.dtype), axis)


@converts("select_scatter")
def select_scattered(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Return x with one of its slices replaced."""
    axis = axis_of(dim, x)
    start = _counted(index, x.shape[axis])
    return slice_scattered(x, F.expand_dims(source, axis), axis, start, start + 1)


@converts("diagonal_scatter")
def diagonal_scattered(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Return x with a diagonal of its matrices replaced."""
    first, second = axis_of(dim1, x), axis_of(dim2, x)
    down, right = max(-offset, 0), max(offset, 0)
    rows, columns = (primitives.iota(x.shape, axis, dtypes.si64) for axis in (first, second))
    # An element of the diagonal, the last axis of the source, for each row of the matrices.
    rest = [axis for axis in range(x.rank) if axis not in (first, second)]
    count, longer = source.shape[-1], [(0, 0)] * len(rest)
    spread = F.pad(converted(source, x.dtype), [*longer, (down, x.shape[first] - down - count)])
    order = [*rest, first]
    turned = F.transpose(spread, [order.index(axis) for axis in sorted(order)])
    return F.where(F.equal(columns - rows, right - down), F.expand_dims(turned, second), x)


@converts("embedding")
def embedding(weight: Tensor, indices: Tensor, *rest: object) -> Tensor:
    """Return rows of a table."""
    del rest
    return F.embedding(indices, weight)


@converts("bucketize", "searchsorted")
def bucketize(
    node: Node,
    x: Operand,
    boundaries: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return how many boundaries lie before each element, with `right` those at it as well.

    Those of rank 1 are for all elements, others for the elements with the same leading indices.
    """
    if node.name.startswith("searchsorted"):
        x, boundaries = boundaries, x
    if not isinstance(boundaries, Tensor) or sorter is not None:
        node.refuse("sorts its boundaries")
    dtype = boundaries.dtype
    if isinstance(x, Tensor) and x.dtype != dtype:
        node.refuse(f"looks for {x.dtype} among {dtype}")
    count = boundaries.shape[-1]
    if not is_number(count) or count > MAX_BOUNDARIES:
        node.refuse(f"has {count} boundaries, at most {MAX_BOUNDARIES} are compared with")
    wanted = F.expand_dims(operand(x, dtype), -1)
    among = boundaries if boundaries.rank == 1 else F.expand_dims(boundaries, -2)
    is_before = F.less_equal if right or side == "right" else F.less
    before = is_before(among, wanted)
    if dtype.is_float:  # NaN comes after all numbers
        before = F.logical_or(before, F.is_nan(wanted))
    return F.sum(F.cast(before, dtypes.si32 if out_int32 else dtypes.si64), -1)


@converts("index_select")
def index_select(x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Return slices of x at indices along an axis."""
    if x.rank == 0:
        return x
    flat = indices if indices.rank else F.reshape(indices, [1])
    return F.take(x, flat, axis_of(dim, x))


@converts("gather")
def gather(x: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Return elements of x at separate indices along an axis."""
    del sparse_grad
    if x.rank == 0:
        return F.broadcast_to(x, indices.shape)
    if indices.rank == 0:
        return F.reshape(F.take(x, indices, 0), [])
    return F.gather(x, indices, axis_of(dim, x))


@converts("scatter", "scatter_add", "scatter_reduce.two")
def scatter(
    node: Node,
    x: Tensor,
    dim: int,
    indices: Tensor,
    updates: Operand,
    *how: str,
    reduce: str | None = None,
    include_self: bool = True,
) -> Tensor:
    """Return x with updates written, or reduced, at indices along an axis."""
    kind: ScatterKind = "add" if node.name == "scatter_add" else "replace"
    asked = how[0] if how else reduce
    if asked == "mean" and isinstance(updates, Tensor):
        return _scattered_means(node, x, dim, indices, updates, include_self)
    if asked is not None:
        if asked not in _KINDS:
            node.refuse(f"reduces by {asked}")
        kind = _KINDS[asked]
    if not include_self and x.rank and indices.rank:
        x = F.scatter(x, indices, _neutral(node, kind, x), axis_of(dim, x))
    if x.rank == 0 or indices.rank == 0:
        whole = F.reshape(x, [1] * max(x.rank, 1)) if x.rank == 0 else x
        spots = F.reshape(indices, [1] * whole.rank)
        given = F.reshape(updates, [1] * whole.rank) if isinstance(updates, Tensor) else updates
        return F.reshape(F.scatter(whole, spots, operand(given, x.dtype), 0, kind), x.shape)
    written = operand(updates, x.dtype)
    if isinstance(updates, Tensor):
        written = F.slice(written, [0] * x.rank, list(indices.shape))
    return F.scatter(x, indices, written, axis_of(dim, x), kind)


def _scattered_means(
    node: Node, x: Tensor, dim: int, indices: Tensor, updates: Tensor, include_self: bool
) -> Tensor:
    """Return x with means of updates at indices along an axis, optionally including x itself."""
    if not x.dtype.is_float:
        node.refuse("computes means of integers")
    more: dict[str, Any] = {"reduce": "sum", "include_self": include_self}
    sums = scatter(node, x, dim, indices, updates, **more)
    ones = F.ones(updates.shape, x.dtype)
    counts = scatter(node, F.ones(x.shape, x.dtype), dim, indices, ones, **more)
    return sums / counts


def _neutral(node: Node, kind: ScatterKind, x: Tensor) -> Tensor:
    """Return the identity element of a reduction."""
    if x.dtype.is_float:
        found = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}.get(kind, 0.0)
        return operand(found, x.dtype)
    if kind in ("max", "min"):
        node.refuse(f"takes the {kind} of integers without what is there")
    return operand(1 if kind == "mul" else 0, x.dtype)


def _flat_indices(x: Tensor, indices: list[Tensor], axes: list[int]) -> Tensor:
    """Return indices of several axes as row-major indices, broadcast together."""
    total: Tensor | None = None
    for axis, each in zip(axes, indices, strict=True):
        index = within_axis(counted_from_start(each, x.shape[axis]), axis, x.shape[axis])
        total = index if total is None else total * size_tensor(x.shape[axis]) + index
    assert total is not None
    return total


def _indexed_axes(node: Node, x: Tensor, indices: list[Tensor | None]) -> list[int]:
    """Return the axes with indices; masks are refused, since their counts depend on data."""
    for each in indices:
        if each is not None and each.dtype.is_bool:
            node.refuse("has a mask, whose count of elements depends on data")
    del x
    return [axis for axis, each in enumerate(indices) if each is not None]


@converts("index", "_unsafe_index")
def index(node: Node, x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Return `x[indices]` by NumPy's rules for tensors of integers."""
    axes = _indexed_axes(node, x, indices)
    given = [cast("Tensor", indices[axis]) for axis in axes]
    if len(axes) == 1:
        return F.take(x, counted_from_start(given[0], x.shape[axes[0]]), axes[0])
    rest = [axis for axis in range(x.rank) if axis not in axes]
    turned = F.transpose(x, [*axes, *rest])
    flat = _flat_indices(x, given, axes)
    sizes = [x.shape[axis] for axis in rest]
    table = F.reshape(turned, [math.prod(x.shape[axis] for axis in axes), *sizes])
    found = F.take(table, flat, 0)
    if axes != list(range(axes[0], axes[0] + len(axes))) or axes[0] == 0:
        return found
    lead, before = flat.rank, axes[0]
    order = [*range(lead, lead + before), *range(lead), *range(lead + before, found.rank)]
    return F.transpose(found, order)


@converts("index_put", "_unsafe_index_put")
def index_put(
    node: Node, x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Return x with values written, or added, at `x[indices]`; a mask takes one value."""
    given = [each for each in indices if each is not None]
    if len(given) == 1 and indices[0] is given[0] and given[0].dtype.is_bool:
        if accumulate or values.type.size != 1:
            node.refuse("writes several values where a mask holds")
        mask = F.reshape(given[0], [*given[0].shape, *[1] * (x.rank - given[0].rank)])
        return F.where(mask, F.reshape(values, []), x)
    axes = _indexed_axes(node, x, indices)
    rest = [axis for axis in range(x.rank) if axis not in axes]
    order = [*axes, *rest]
    turned = F.transpose(x, order)
    flat = _flat_indices(x, [cast("Tensor", indices[axis]) for axis in axes], axes)
    sizes = [x.shape[axis] for axis in rest]
    first, width = math.prod(x.shape[axis] for axis in axes), math.prod(sizes)
    count = math.prod(flat.shape)
    spread = _spread_values(values, flat, sizes, axes)
    rows = F.broadcast_to(F.reshape(flat, [count, 1]), [count, width])
    written = F.scatter(
        F.reshape(turned, [first, width]),
        rows,
        F.reshape(spread, [count, width]),
        0,
        "add" if accumulate else "replace",
    )
    back = [order.index(axis) for axis in range(x.rank)]
    return F.transpose(F.reshape(written, turned.shape), back)


def _spread_values(values: Tensor, flat: Tensor, sizes: list[int], axes: list[int]) -> Tensor:
    """Return values broadcast to the shape of a read, with the index axes in front."""
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if together else 0
    shape = [*sizes[:before], *flat.shape, *sizes[before:]]
    spread = F.broadcast_to(values, shape)
    lead = flat.rank
    order = [*range(before, before + lead), *range(before), *range(before + lead, len(shape))]
    return F.transpose(spread, order)


@converts("put")
def put(node: Node, x: Tensor, indices: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with values written, or added, at indices into its elements in row-major order."""
    flat, where = (F.reshape(each, (-1,)) for each in (x, indices))
    given = [F.reshape(counted_from_start(where, flat.shape[0]), indices.shape)]
    return F.reshape(index_put(node, flat, list(given), values, accumulate), x.shape)


@converts("masked_scatter")
def masked_scatter(node: Node, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return x with the first elements of a source, in order, where the mask holds."""
    if not all(map(is_number, node.result.shape)):
        node.refuse("has a free size")
    shape = list(node.result.shape)
    x, whole = F.broadcast_to(x, shape), F.broadcast_to(mask, shape)
    flat = F.cast(F.reshape(whole, [math.prod(x.shape)]), dtypes.si64)
    count = math.prod(source.shape)
    order = F.clamp(F.cumsum(flat, 0) - 1, 0)
    order = F.minimum(order, size_tensor(count - 1))
    found = F.take(F.reshape(converted(source, x.dtype), [count]), order, 0)
    return F.where(whole, F.reshape(found, x.shape), x)
