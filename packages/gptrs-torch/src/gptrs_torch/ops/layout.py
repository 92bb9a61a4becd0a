"""Shapes, orders of axes, parts and joins: nothing is computed."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import numpy as np
import torch

from gptrs.api.importers import is_number, is_symbol
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_torch.archive import array_of, memory_order
from gptrs_torch.conversion import Node, converts
from gptrs_torch.ops.activations import truth
from gptrs_torch.program_check import Number, Operand, axis_of, converted, operand, scalar

MAX_INDICES: Final = 2**24
"""Most elements of `as_strided`, since their indices become a constant of the program."""


converts.rows({"tril": F.tril, "triu": F.triu})


@converts(
    "alias",
    "clone",
    "detach",
    "contiguous",
    "lift_fresh_copy",
    "detach_copy",
    "lift_fresh",
    "alias_copy",
)
def same(x: Tensor, **named: object) -> Tensor:
    """Return x: values never change, so a copy equals it."""
    del named
    return x


@converts("_assert_tensor_metadata")
def checked_type(x: Tensor, *rest: object, **named: object) -> None:
    """Do nothing: the export checked types and layouts, and inputs must match the export."""
    del x, rest, named


@converts("_assert_scalar")
def checked_size(node: Node, condition: object, message: str) -> None:
    """Refuse sizes that break a condition of the export."""
    if isinstance(condition, Tensor) or not condition:
        node.refuse(f"has a condition that does not hold or depends on data: {message}")


@converts("_to_copy", "to.dtype", "type_as", "to.dtype_layout")
def to_copy(node: Node, x: Tensor, *rest: object, **named: object) -> Tensor:
    """Return x in another element type; a float becomes an integer towards 0."""
    del rest
    device = named.get("device")
    if device is not None and torch.device(str(device)).type != "cpu":
        node.refuse(f"moves a tensor to {device}")
    dtype = node.dtype
    if dtype.is_bool:
        return truth(x)
    if dtype.is_integer and x.dtype.is_float:
        return F.cast(F.trunc(x), dtype)
    return converted(x, dtype)


@converts("copy")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return the source in the type and shape of x."""
    del non_blocking
    return F.broadcast_to(converted(source, x.dtype), x.shape)


@converts("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")
def reshape(node: Node, x: Tensor, shape: list[int] | torch.dtype, *rest: object) -> Tensor:
    """Return x in another shape, in which one -1 is inferred."""
    del rest
    if isinstance(shape, torch.dtype):
        wanted = node.dtype_at(shape)
        if wanted.bits != x.dtype.bits:
            node.refuse("reads bits as elements of another size")
        return primitives.bitcast(x, wanted)
    return F.reshape(x, _without_rest(x, shape))


@converts("resize")
def resize(node: Node, x: Tensor, shape: list[int], *, memory_format: object = None) -> Tensor:
    """Return the first elements of x, in row-major order, in another shape."""
    del memory_format
    if not all(map(is_number, (*x.shape, *shape))) or math.prod(shape) > math.prod(x.shape):
        node.refuse("takes more elements than there are, or a free size")
    flat = F.reshape(x, [math.prod(x.shape)])
    return F.reshape(F.slice_axis(flat, 0, 0, math.prod(shape)), shape)


def _without_rest(x: Tensor, shape: list[int]) -> list[int]:
    rests = [axis for axis, size in enumerate(shape) if is_number(size, -1)]
    if not rests:
        return shape
    rest = rests[0]
    given = math.prod(shape[:rest] + shape[rest + 1 :])
    return [*shape[:rest], math.prod(x.shape) // given, *shape[rest + 1 :]]


@converts("permute", "permute_copy")
def permute(x: Tensor, dims: list[int]) -> Tensor:
    """Return x with its axes in another order."""
    return F.transpose(x, [axis % x.rank for axis in dims]) if x.rank else x


@converts("transpose.int", "t")
def transpose(x: Tensor, first: int = 0, second: int = 1) -> Tensor:
    """Return x with two axes exchanged."""
    return F.swap_axes(x, axis_of(first, x), axis_of(second, x)) if x.rank > 1 else x


@converts("expand", "expand_copy")
def expand(x: Tensor, sizes: list[int], *, implicit: bool = False) -> Tensor:
    """Return x broadcast to a shape, in which -1 keeps a size."""
    del implicit
    own = [1] * (len(sizes) - x.rank) + list(x.shape)
    target = [mine if is_number(size, -1) else size for size, mine in zip(sizes, own, strict=True)]
    return F.broadcast_to(x, target)


@converts("unsqueeze", "unsqueeze_copy")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return x with a new axis of size 1."""
    return F.expand_dims(x, dim % (x.rank + 1))


@converts("squeeze", "squeeze_copy")
def squeeze(x: Tensor, dim: int | list[int] | None = None) -> Tensor:
    """Return x without axes of size 1."""
    given = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [axis_of(axis, x) for axis in given]
    ones = sorted({axis for axis in axes if x.rank and x.shape[axis] == 1})
    return F.squeeze(x, ones) if ones else x


@converts("cat")
def cat(node: Node, parts: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors; empty ones of one axis are ignored, as in old versions of torch."""
    kept = [part for part in parts if part.shape != (0,)] or parts[:1]
    joined = [converted(part, node.dtype) for part in kept]
    return F.concat(joined, axis_of(dim, joined[0])) if len(joined) > 1 else joined[0]


@converts("stack")
def stack(node: Node, parts: list[Tensor], dim: int = 0) -> Tensor:
    """Return tensors side by side along a new axis."""
    return F.stack([converted(part, node.dtype) for part in parts], dim % (parts[0].rank + 1))


@converts("narrow_copy")
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a part of x along an axis."""
    axis = axis_of(dim, x)
    first = x.shape[axis] + start if is_number(start) and start < 0 else start
    return F.slice_axis(x, axis, first, length)


@converts("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Return parts of x of given sizes."""
    axis, start = axis_of(dim, x), 0
    parts: list[Tensor] = []
    for size in sizes:
        parts.append(F.slice_axis(x, axis, start, size))
        start = start + size
    return parts


@converts("split.Tensor")
def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Return parts of x of one size; the last one may be smaller."""
    whole = x.shape[axis_of(dim, x)]
    return split_with_sizes(x, [min(size, whole - at) for at in range(0, whole, size)], dim)


@converts("unbind", "unbind_copy")
def unbind(node: Node, x: Tensor, dim: int = 0) -> list[Tensor]:
    """Return the slices of x along an axis."""
    axis = axis_of(dim, x)
    count = len(node.source.meta["val"])
    return [F.squeeze(F.slice_axis(x, axis, index, 1), axis) for index in range(count)]


@converts("repeat")
def repeat(x: Tensor, repeats: list[int]) -> Tensor:
    """Return x repeated along each axis, with new ones in front."""
    return F.tile(F.reshape(x, [1] * (len(repeats) - x.rank) + list(x.shape)), repeats)


@converts("flip")
def flip(x: Tensor, dims: list[int]) -> Tensor:
    """Return x reversed along axes."""
    return F.flip(x, [axis_of(axis, x) for axis in dims]) if x.rank and dims else x


@converts("diagonal", "diagonal_copy")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the diagonal of matrices, as the last axis."""
    first, second = axis_of(dim1, x), axis_of(dim2, x)
    rest = [axis for axis in range(x.rank) if axis not in (first, second)]
    turned = F.transpose(x, [*rest, first, second])
    rows, columns = turned.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    count = max(min(rows - down, columns - right), 0)
    lead = list(turned.shape[:-2])
    flat = F.reshape(turned, [*lead, rows * columns])
    indices = F.arange(count) * (columns + 1) + (down * columns + right)
    return F.take(flat, indices, len(lead))


@converts("roll")
def roll(x: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    """Return x rolled along axes."""
    several = [shifts] if isinstance(shifts, int) else shifts
    axes = [dims] if isinstance(dims, int) else (dims or [])
    if not axes:
        return F.reshape(F.roll(F.reshape(x, [math.prod(x.shape)]), several[0], 0), x.shape)
    for shift, axis in zip(several, axes, strict=True):
        x = F.roll(x, shift, axis_of(axis, x))
    return x


@converts("unfold", "unfold_copy")
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return the windows of an axis, the elements of each on a new last axis."""
    if not x.rank:
        return F.reshape(x, [size])
    axis = axis_of(dimension, x)
    starts = F.expand_dims(F.arange((x.shape[axis] - size) // step + 1) * step, 1)
    found = F.take(x, starts + F.arange(size), axis)
    return F.transpose(found, [each for each in range(found.rank) if each != axis + 1] + [axis + 1])


@converts("unfold_backward")
def folded(x: Tensor, sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Return the sums of overlapping windows, which are along the last axis (`unfold` of `dim`)."""
    axis = axis_of(dim, x)
    frames = F.transpose(
        x, [*(each for each in range(x.rank - 1) if each != axis), axis, x.rank - 1]
    )
    lead, count = list(frames.shape[:-2]), frames.shape[-2]
    pieces = -(-size // step)
    frames = F.pad(frames, [*[(0, 0)] * (x.rank - 1), (0, pieces * step - size)])
    total: Tensor | None = None
    for i, piece in enumerate(F.split(frames, pieces, -1)):
        # The i-th parts of all windows follow each other without overlap.
        flat = F.reshape(piece, [*lead, count * step])
        moved = F.pad(flat, [*[(0, 0)] * len(lead), (i * step, (pieces - 1 - i) * step)])
        total = moved if total is None else total + moved
    assert total is not None
    # Windows end at most at the length, so all that is cut off is zeros.
    least = (count - 1) * step + size
    total = F.slice_axis(total, -1, 0, least)
    total = F.pad(total, [*[(0, 0)] * len(lead), (0, sizes[axis] - least)])
    return F.transpose(total, [*range(axis), len(lead), *range(axis, len(lead))])


@converts("as_strided", "as_strided_copy")
def as_strided(
    node: Node, x: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """Return the elements of x at the offsets in memory given by strides."""
    order, offsets = _offsets(node, x, size, stride, storage_offset or 0)
    flat = F.reshape(F.transpose(x, order), [math.prod(x.shape)])
    return F.take(flat, primitives.constant(offsets), 0)


@converts("as_strided_scatter")
def as_strided_scattered(
    node: Node,
    x: Tensor,
    source: Tensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> Tensor:
    """Return x with the elements of `source` at the offsets in memory given by strides."""
    order, offsets = _offsets(node, x, size, stride, storage_offset or 0)
    moved = F.transpose(x, order)
    flat, values = (F.reshape(each, [math.prod(each.shape)]) for each in (moved, source))
    places = primitives.constant(offsets.reshape(-1))
    made = F.scatter(flat, places, converted(values, x.dtype), 0)
    back = sorted(range(x.rank), key=lambda axis: order[axis])
    return F.transpose(F.reshape(made, moved.shape), back)


def _offsets(
    node: Node, x: Tensor, size: list[int], stride: list[int], first: int
) -> tuple[list[int], np.ndarray]:
    """Return the axes of x in the order of memory, and the offsets there of a strided view."""
    held = node.argument(0)
    order = memory_order(held) if isinstance(held, torch.Tensor) else None
    if order is None or not all(map(is_number, (*size, *stride, *x.shape))):
        node.refuse("has memory with gaps, or of a free size")
    offsets = np.full(size, first, np.int64)
    if offsets.size > MAX_INDICES:
        node.refuse(f"has {offsets.size} elements, at most {MAX_INDICES} are listed")
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [count if i == axis else 1 for i in range(len(size))]
        offsets += (np.arange(count) * step).reshape(shape)
    return list(order), offsets


# Tensors made from numbers.


def filled(shape: list[int], value: Operand, dtype: DType) -> Tensor:
    """Return a tensor whose elements are all `value`."""
    made = operand(value, dtype)
    return F.broadcast_to(made, shape) if shape else made


@converts("full", "new_full")
def full(node: Node, shape: list[int] | Tensor, *rest: Any, **named: object) -> Tensor:
    """Return a constant tensor; `new_full` takes a tensor first, for its type."""
    del named
    wanted, value = rest if isinstance(shape, Tensor) else (shape, rest[0])
    return filled(wanted, value, node.dtype)


@converts("full_like", "fill")
def full_like(node: Node, x: Tensor, value: Operand, **named: object) -> Tensor:
    """Return a constant tensor like x."""
    del named
    return filled(list(x.shape), value, node.dtype)


@converts("zeros_like", "ones_like", "empty_like")
def constant_like(node: Node, x: Tensor, **named: object) -> Tensor:
    """Return zeros or ones like x; uninitialized memory is zeros, too."""
    del named
    return filled(list(x.shape), 1 if node.name == "ones_like" else 0, node.dtype)


@converts("zeros", "ones", "empty", "empty_strided")
def constant(node: Node, shape: list[int], *rest: object, **named: object) -> Tensor:
    """Return zeros or ones; uninitialized memory is zeros, too."""
    del rest, named
    return filled(shape, 1 if node.name == "ones" else 0, node.dtype)


@converts("new_zeros", "new_ones", "new_empty", "new_empty_strided")
def new_constant(node: Node, x: Tensor, shape: list[int], *rest: object, **named: object) -> Tensor:
    """Return zeros or ones in the type of x; uninitialized memory is zeros, too."""
    del x, rest, named
    return filled(shape, 1 if node.name == "new_ones" else 0, node.dtype)


@converts("scalar_tensor")
def scalar_tensor(node: Node, value: Number, **named: object) -> Tensor:
    """Return a number as a tensor."""
    del named
    return scalar(value, node.dtype)


@converts("bartlett_window", "blackman_window", "hamming_window", "kaiser_window")
def window(node: Node, *shape: Number | bool, **named: object) -> Tensor:
    """Return a window as torch computes it: no tensor determines it."""
    del named
    if any(map(is_symbol, shape)):
        node.refuse("has a free size")
    made = cast("Any", node.source.target)(*shape, dtype=node.result.dtype)
    return primitives.constant(array_of(made))


@converts("arange.start_step", "arange.start", "arange.default")
def arange(node: Node, *bounds: Number, **named: object) -> Tensor:
    """Return numbers from a start up to an end (excluded), in steps."""
    del named
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    dtype = node.dtype
    if any(is_symbol(each) for each in (start, end, step)):
        first = math.floor(start) if step == 1 and isinstance(start, float) else start
        if not is_number(step) or not all(is_number(x) or is_symbol(x) for x in (first, end)):
            node.refuse("has a fractional bound or a step that is a free size")
        count = end - first if step == 1 else (end - first + step - 1) // step
        steps = F.arange(count)  # pyright: ignore[reportArgumentType]
        made = steps * scalar(step, dtypes.si64) + scalar(first, dtypes.si64)
        return converted(
            made if first is start else F.cast(made, dtypes.f64) + (start - first), dtype
        )
    count = max(math.ceil((end - start) / step), 0)
    if dtype.is_integer:
        made = F.arange(int(start), int(start) + count * int(step), int(step))
        return converted(made, dtype)
    steps = F.cast(F.arange(count), dtypes.f64)
    return converted(steps * float(step) + float(start), dtype)


@converts.each({"triu_indices": np.triu_indices, "tril_indices": np.tril_indices})
def triangle_indices(
    function: Any, node: Node, rows: int, columns: int, offset: int = 0, **named: object
) -> Tensor:
    """Return the row and column of each element of a triangle, in row-major order [2, count]."""
    del named
    if not is_number(rows) or not is_number(columns):
        node.refuse("has a free size")
    found = np.stack(function(rows, offset, columns)).astype(np.int64)
    return converted(primitives.constant(found), node.dtype)


@converts("eye", "eye.m")
def eye(node: Node, rows: int, columns: int | None = None, **named: object) -> Tensor:
    """Return a matrix with ones on the diagonal."""
    del named
    shape = [rows, rows if columns is None else columns]
    down = primitives.iota(shape, 0, dtypes.si64)
    return converted(F.equal(down, primitives.iota(shape, 1, dtypes.si64)), node.dtype)
