"""Kernels of the ops that move elements without computing on them."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import creation as creation_ops
from gptrs.ir.ops import layout as layout_ops
from gptrs.ir.ops import sorting as sorting_ops
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.kernels.indexing import along_axis
from gptrs_backend_ref.kernels.reduction import ORDERED
from gptrs_backend_ref.numerics import convert, widen
from gptrs_backend_ref.table import TABLE, Body


@TABLE.register(layout_ops.Reshape, dtypes=dtypes.ALL)
def reshape(op: layout_ops.Reshape, x: np.ndarray) -> np.ndarray:
    """Return the same elements, in row-major order, in another shape."""
    return x.reshape(op.shape)


@TABLE.register(layout_ops.Transpose, dtypes=dtypes.ALL)
def transpose(op: layout_ops.Transpose, x: np.ndarray) -> np.ndarray:
    """Permute the axes."""
    return x.transpose(op.permutation)


@TABLE.register(layout_ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcast_to(op: layout_ops.BroadcastTo, x: np.ndarray) -> np.ndarray:
    """Repeat the elements along new axes and axes of size 1."""
    return np.broadcast_to(x, op.shape)


@TABLE.register(layout_ops.Slice, dtypes=dtypes.ALL)
def slice_(op: layout_ops.Slice, x: np.ndarray) -> np.ndarray:
    """Return `size` elements of each axis, from `start` on, a step apart."""
    # The end may be past the axis, where NumPy clips; `op.infer` has checked the reads.
    spans = zip(op.starts, op.sizes, op.steps(x.ndim), strict=True)
    return x[tuple(slice(start, start + size * step, step) for start, size, step in spans)]


@TABLE.register(layout_ops.Concat, dtypes=dtypes.ALL)
def concat(op: layout_ops.Concat, *parts: np.ndarray) -> np.ndarray:
    """Join the operands along the axis."""
    return np.concatenate(parts, axis=op.axis)


@TABLE.register(layout_ops.Pad, dtypes=dtypes.ALL)
def pad(op: layout_ops.Pad, x: np.ndarray) -> np.ndarray:
    """Copy the elements that are not trimmed to their positions in a tensor of `value`."""
    shape = op.infer(TensorType.of(x)).shape
    result = np.zeros(shape, x.dtype)
    if op.value is not None:
        result[...] = op.value.array
    sources: list[slice] = []
    positions: list[slice] = []
    for dim, size, low, between in zip(x.shape, shape, op.low, op.between(x.ndim), strict=True):
        step = between + 1
        # Element `i` goes to `low + i * step`: the first at or past 0, the first at or past `size`.
        first = max(-(low // step), 0)
        last = max(min(dim, -((low - size) // step)), first)
        position = low + first * step
        sources.append(slice(first, last))
        positions.append(slice(position, position + (last - first) * step, step))
    result[tuple(positions)] = x[tuple(sources)]
    return result


@TABLE.register(layout_ops.Tile, dtypes=dtypes.ALL)
def tile(op: layout_ops.Tile, x: np.ndarray) -> np.ndarray:
    """Repeat the whole tensor along each axis."""
    pairs = list(zip(op.repeats, x.shape, strict=True))
    split = x.reshape([size for dim in x.shape for size in (1, dim)])
    repeated = np.broadcast_to(split, [size for pair in pairs for size in pair])
    return repeated.reshape([repeats * dim for repeats, dim in pairs])


@TABLE.register(layout_ops.Reverse, dtypes=dtypes.ALL)
def reverse(op: layout_ops.Reverse, x: np.ndarray) -> np.ndarray:
    """Reverse the order of the elements along the axes."""
    return np.flip(x, op.axes)


# Kernels of the ops that make a tensor from attributes only.


@TABLE.register(creation_ops.Constant, dtypes=dtypes.ALL)
def constant(op: creation_ops.Constant) -> np.ndarray:
    """Return the elements of the literal."""
    return op.value.array


@TABLE.register(creation_ops.Iota, dtypes=dtypes.INTEGERS + dtypes.FLOATS)
def iota(op: creation_ops.Iota) -> np.ndarray:
    """Return 0, 1, ... along the axis."""
    if 0 in op.shape:  # another axis may be too long to count
        return np.empty(op.shape, op.dtype.numpy)
    count = op.shape[op.axis]
    aligned = [count if axis == op.axis else 1 for axis in range(len(op.shape))]
    indices = convert(np.arange(count, dtype=np.int64), op.dtype)
    return np.broadcast_to(indices.reshape(aligned), op.shape)


# Kernels of the ops that put elements in order.


@TABLE.register(sorting_ops.Sort, dtypes=ORDERED)
def sort(op: sorting_ops.Sort, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sort each operand by the order of the first; the sort is always stable."""
    order = ordering(operands[0], op.axis, op.descending)
    return tuple(along_axis(operand, order, op.axis) for operand in operands)


@TABLE.register(sorting_ops.TopK, dtypes=ORDERED)
def top_k(op: sorting_ops.TopK, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `k` elements of a stable sort, and their indices."""
    first = (slice(None),) * op.axis + (slice(op.k),)
    indices = ordering(x, op.axis, descending=op.largest)[first]
    return along_axis(x, indices, op.axis), indices.astype(op.indices_dtype.numpy)


def ordering(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the positions along `axis` in the order of the elements; ties ascend.

    NumPy, like PTIR, sorts NaN behind all numbers. A descending stable order is the reversed
    ascending stable order of the reversed elements.
    """
    wide = widen(x)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


# Kernels that run regions and functions.


Arrays = tuple[np.ndarray, ...]


@TABLE.register(Cond, dtypes=[dtypes.i1])
def cond(
    op: Cond, predicate: np.ndarray, *operands: np.ndarray, bodies: tuple[Body, Body]
) -> Arrays:
    """Run the first region if the predicate is true, else the second."""
    then, otherwise = bodies
    return then(*operands) if predicate else otherwise(*operands)


@TABLE.register(While, dtypes=[dtypes.i1])
def while_(op: While, *state: np.ndarray, bodies: tuple[Body, Body]) -> Arrays:
    """Run the body while the condition holds; return the first state for which it does not."""
    condition, body = bodies
    while condition(*state)[0]:
        state = body(*state)
    return state


@TABLE.register(Scan, dtypes=[dtypes.i1])
def scan(op: Scan, *operands: np.ndarray, bodies: tuple[Body]) -> Arrays:
    """Run the body for each step; return the last carried values, then the stacked results."""
    (body,) = bodies
    carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
    length = len(scanned[0]) if op.length is None else op.length
    ys_types = body.signature.results[op.carry_count :]
    stacked = [np.empty((length, *type_.shape), type_.dtype.numpy) for type_ in ys_types]
    for i in reversed(range(length)) if op.reverse else range(length):
        results = body(*carried, *(x[i, ...] for x in scanned))
        carried, ys = results[: op.carry_count], results[op.carry_count :]
        for stack, y in zip(stacked, ys, strict=True):
            stack[i] = y
    return (*carried, *stacked)


@TABLE.register(Call, Composite, dtypes=[dtypes.i1])
def call(op: Call | Composite, *operands: np.ndarray, bodies: tuple[Body]) -> Arrays:
    """Run the function."""
    return bodies[0](*operands)
