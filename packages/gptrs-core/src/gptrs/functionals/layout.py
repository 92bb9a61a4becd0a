"""Functionals that change shape, order or type of elements without arithmetic. They take every
element type. Negative axes count from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    Axes,
    Number,
    axes_of,
    axis_of,
    converted,
    expand,
    require_held,
    require_one_of,
    require_same_dtype,
)
from gptrs.ir.dtypes import DTypeLike, dtype_of
from gptrs.ir.size_guards import broadcastable_to
from gptrs.ir.symbolic_dim import SymbolicDim


@functional
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """x converted to `dtype` by the rules of the op `cast`; x itself if it has that type."""
    wanted = dtype_of(dtype)
    if x.dtype.is_complex and not (wanted.is_complex or wanted.is_bool):
        raise UsageError(f"`cast` of `{x.type}` to {wanted} would drop the imaginary part")
    return converted(x, wanted)


@functional
def stop_gradient(x: Tensor) -> Tensor:
    """x itself, treated as a constant by differentiation."""
    return primitives.stop_gradient(x)


@functional
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in row-major order under another shape; one dim may be -1."""
    return primitives.reshape(x, shape)


@functional
def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """The axes from `start_axis` to `end_axis`, inclusive, as one; [1] of rank 0 (torch's)."""
    if x.rank == 0:
        return primitives.reshape(x, (1,))
    start, end = axis_of("flatten", start_axis, x), axis_of("flatten", end_axis, x)
    if start > end:
        raise UsageError(f"`flatten` of `{x.type}` cannot go from axis {start} to {end}")
    size = 1
    for dim in x.shape[start : end + 1]:
        size *= dim
    return primitives.reshape(x, (*x.shape[:start], size, *x.shape[end + 1 :]))


@functional
def squeeze(x: Tensor, axis: Axes = None) -> Tensor:
    """Drop the given axes of size 1, or for None all of size 1 (`np.squeeze`).

    A symbolic size is judged by its example size.
    """
    if axis is None:
        axes = tuple(along for along, dim in enumerate(x.shape) if _is_one(dim))
    else:
        axes = axes_of("squeeze", axis, x)
    for along in axes:
        if not _is_one(x.shape[along]):
            raise UsageError(f"`squeeze` of `{x.type}` cannot drop axis {along}, it is not 1")
    if any(isinstance(x.shape[along], SymbolicDim) for along in axes):
        ends = [1 if along in axes else dim for along, dim in enumerate(x.shape)]
        # Index the single element, so that the size is a number.
        x = primitives.slice(x, (0,) * x.rank, ends)
    kept = tuple(dim for along, dim in enumerate(x.shape) if along not in axes)
    return primitives.reshape(x, kept)


def _is_one(dim: int) -> bool:
    """Return whether a size is 1, by its example if it is symbolic."""
    return dim == 1 or (isinstance(dim, SymbolicDim) and not dim > 1 and not dim < 1)


@functional
def expand_dims(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert an axis of size 1 at each named position of the result (`np.expand_dims`)."""
    several = [axis] if isinstance(axis, int) else axis
    rank = x.rank + len(several)
    added = {at % rank for at in several if -rank <= at < rank}
    if len(added) != len(several):
        reason = f"needs positions in a result of {rank} axes, each once, got {list(several)}"
        raise UsageError(f"`expand_dims` of `{x.type}` {reason}")
    dims = iter(x.shape)
    return primitives.reshape(x, tuple(1 if i in added else next(dims) for i in range(rank)))


@functional
def transpose(x: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axis i of the result is axis `permutation[i]` of x; without one the axes are reversed."""
    return primitives.transpose(x, range(x.rank)[::-1] if permutation is None else permutation)


@functional
def swap_axes(x: Tensor, first: int, second: int) -> Tensor:
    """Swap two axes (`np.swapaxes`)."""
    one, other = axis_of("swap_axes", first, x), axis_of("swap_axes", second, x)
    order = list(range(x.rank))
    order[one], order[other] = other, one
    return primitives.transpose(x, order)


@functional
def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated to `shape`: axes align at the right, each dim of x is 1 or equal to that of
    `shape`.
    """
    if not broadcastable_to(x.shape, tuple(shape)):
        reason = f"to {list(shape)} needs each dim, aligned at the right, equal or 1"
        raise UsageError(f"`broadcast_to` of `{x.type}` {reason}")
    return expand(x, tuple(shape))


@functional
def slice(
    x: Tensor,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int | None] | None = None,
) -> Tensor:
    """`x[start:stop:step, ..]` with one entry an axis, by the rules of Python's slices.

    Negative positions count from the end, those outside are clipped, None leaves an end open, and
    a negative step walks backward. UsageError for a step of 0 or another number of entries.
    """
    given = (starts, stops, [None] * x.rank if steps is None else steps)
    if [len(part) for part in given] != [x.rank] * 3:
        raise UsageError(f"`slice` of `{x.type}` needs {x.rank} starts, stops and steps")
    if 0 in given[2]:
        raise UsageError(f"`slice` of `{x.type}` cannot walk in steps of 0")
    walks = [_walk(dim, *ends) for dim, *ends in zip(x.shape, *given, strict=True)]
    # The op only steps forward: backward slices are read from their last element and reversed.
    lowest = [min(walk[0], walk[-1]) if walk else 0 for walk in walks]
    sizes, strides = [len(walk) for walk in walks], [abs(walk.step) for walk in walks]
    block = primitives.slice(x, lowest, sizes, strides)
    backward = [axis for axis, walk in enumerate(walks) if walk.step < 0]
    return primitives.reverse(block, backward) if backward else block


@functional
def slice_axis(x: Tensor, axis: int, start: int, size: int) -> Tensor:
    """`size` elements of one axis from `start` on, all of the other axes."""
    along = axis_of("slice_axis", axis, x)
    if start < 0 or size < 0 or start + size > x.shape[along]:
        raise UsageError(
            f"`slice_axis` of `{x.type}` cannot take {size} from {start} on axis {along}"
        )
    starts = [start if position == along else 0 for position in range(x.rank)]
    sizes = [size if position == along else dim for position, dim in enumerate(x.shape)]
    return primitives.slice(x, starts, sizes)


@functional
def flip(x: Tensor, axis: Axes = None) -> Tensor:
    """The elements in reverse order along the given axes, or for None along all (`np.flip`)."""
    return primitives.reverse(x, axes_of("flip", axis, x))


def _walk(dim: int, start: int | None, stop: int | None, step: int | None) -> range:
    """Return the positions that `start:stop:step` names on an axis of size `dim`."""
    return range(dim)[start:stop:step]


# Functionals that split, join and repeat tensors.
#
# They take every element type. Axes may be negative and then count from the end.


@functional
def split(x: Tensor, parts: int | Sequence[int], axis: int = -1) -> tuple[Tensor, ...]:
    """Pieces along `axis`: `parts` equal ones, or one of each size listed.

    UsageError when the size of the axis is not divisible, or not the sum of the sizes.
    """
    along = axis_of("split", axis, x)
    dim = x.shape[along]
    if isinstance(parts, int):
        if parts < 1 or dim % parts:
            raise UsageError(
                f"`split` cannot cut axis {along} of `{x.type}` into {parts} equal parts"
            )
        sizes = [dim // parts] * parts
    else:
        sizes = list(parts)
        if sum(sizes) != dim or min(sizes, default=0) < 0:
            raise UsageError(f"`split` cannot cut axis {along} of `{x.type}` into parts of {sizes}")
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(
        slice_axis(x, along, start, size) for start, size in zip(starts, sizes, strict=True)
    )


@functional
def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The parts one after another along `axis`; other dims and element types must be equal.

    UsageError for no parts, or parts of rank 0.
    """
    along = _joined_axis("concat", parts, axis, 0)
    rest = {part.shape[:along] + part.shape[along + 1 :] for part in parts}
    if len({part.rank for part in parts}) > 1 or len(rest) > 1:
        raise UsageError(
            f"`concat` needs equal dims on every axis but {along}, got {_listed(parts)}"
        )
    return primitives.concat(parts, along) if len(parts) > 1 else parts[0]


@functional
def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The parts, of one type, along a new `axis` of the result (`np.stack`)."""
    along = _joined_axis("stack", parts, axis, 1)
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        raise UsageError(f"`stack` needs tensors of one shape, got {_listed(parts)}")
    layers = [primitives.reshape(part, (*shape[:along], 1, *shape[along:])) for part in parts]
    return primitives.concat(layers, along) if len(layers) > 1 else layers[0]


@functional
def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """x side by side with itself, `repeats[i]` times along axis i (`np.tile`).

    The shorter of the shape and `repeats` is filled up with 1 in front.
    """
    if min(repeats, default=0) < 0:
        raise UsageError(f"`tile` of `{x.type}` needs repeats >= 0, got {list(repeats)}")
    rank = max(x.rank, len(repeats))
    shape = (1,) * (rank - x.rank) + x.shape
    times = (1,) * (rank - len(repeats)) + tuple(repeats)
    whole = x if shape == x.shape else primitives.reshape(x, shape)
    return primitives.tile(whole, times)


@functional
def repeat_interleave(x: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element along `axis` repeated `repeats` times in a row (`np.repeat`).

    For [B, H, S, D] and axis 1, this copies each key or value head for its query heads.
    """
    along = axis_of("repeat_interleave", axis, x)
    if repeats < 0:
        raise UsageError(f"`repeat_interleave` of `{x.type}` needs repeats >= 0, got {repeats}")
    before, dim, after = x.shape[:along], x.shape[along], x.shape[along + 1 :]
    apart = primitives.reshape(x, (*before, dim, 1, *after))
    copies = primitives.broadcast_to(apart, (*before, dim, repeats, *after))
    return primitives.reshape(copies, (*before, dim * repeats, *after))


@functional
def roll(x: Tensor, shift: int, axis: int) -> Tensor:
    """Shifted by `shift` along `axis`, wrapping around (`np.roll`)."""
    along = axis_of("roll", axis, x)
    dim = x.shape[along]
    start = -shift % dim if dim else 0
    if start == 0:
        return x
    tail, head = slice_axis(x, along, start, dim - start), slice_axis(x, along, 0, start)
    return primitives.concat([tail, head], along)


def _joined_axis(name: str, parts: Sequence[Tensor], axis: int, more: int) -> int:
    """Check the parts of a join; return `axis` in a result with `more` axes than the parts."""
    if not parts:
        raise UsageError(f"`{name}` needs at least one tensor")
    require_same_dtype(name, *parts)
    rank = parts[0].rank + more
    if not -rank <= axis < rank:
        raise UsageError(f"`{name}` got axis {axis} for {_listed(parts)}, result of {rank} axes")
    return axis % rank


def _listed(parts: Sequence[Tensor]) -> str:
    return ", ".join(f"`{part.type}`" for part in parts)


# Padding at the ends of axes: with a number, with the edge, or with a reflection.


@functional
def pad(
    x: Tensor,
    widths: Sequence[tuple[int, int]],
    mode: Literal["constant", "edge", "reflect"] = "constant",
    value: Number = 0,
) -> Tensor:
    """x with `(low, high)` more elements at the ends of each axis, of any element type (`np.pad`).

    "constant" pads with `value`, and a negative width removes elements; "edge" repeats the first
    and last element; "reflect" mirrors at them, so that a width stays below the dim. UsageError for
    widths that the axis does not allow.
    """
    require_one_of("pad", "mode", mode, ("constant", "edge", "reflect"))
    if len(widths) != x.rank:
        reason = f"needs {x.rank} pairs of widths, got {list(widths)}"
        raise UsageError(f"`pad` of `{x.type}` {reason}")
    if mode == "constant":
        return _constant(x, widths, value)
    for axis, (low, high) in enumerate(widths):
        _require_room(x, axis, low, high, mode)
        if low or high:
            x = _edge(x, axis, low, high) if mode == "edge" else _reflect(x, axis, low, high)
    return x


def _constant(x: Tensor, widths: Sequence[tuple[int, int]], value: Number) -> Tensor:
    for axis, (low, high) in enumerate(widths):
        if low + x.shape[axis] + high < 0:
            raise UsageError(f"`pad` of `{x.type}` trims axis {axis} by {-low - high}")
    # An i1 holds no numbers, but the default value means False.
    fill = bool(value) if x.dtype.is_bool and value == 0 else value
    require_held(x.dtype, fill)
    return primitives.pad(x, [low for low, _ in widths], [high for _, high in widths], value=fill)


def _require_room(x: Tensor, axis: int, low: int, high: int, mode: str) -> None:
    dim = x.shape[axis]
    most = max(dim - 1, 0) if mode == "reflect" else max(low, high) if dim else 0
    if not 0 <= min(low, high) <= max(low, high) <= most:
        raise UsageError(f"`pad` of `{x.type}` cannot {mode} axis {axis} by ({low}, {high})")


def _edge(x: Tensor, axis: int, low: int, high: int) -> Tensor:
    first, last = slice_axis(x, axis, 0, 1), slice_axis(x, axis, x.shape[axis] - 1, 1)
    before, after = (
        expand(end, (*x.shape[:axis], width, *x.shape[axis + 1 :]))
        for end, width in ((first, low), (last, high))
    )
    return _surrounded(before, x, after, axis)


def _reflect(x: Tensor, axis: int, low: int, high: int) -> Tensor:
    before = flip(slice_axis(x, axis, 1, low), axis) if low else None
    after = flip(slice_axis(x, axis, x.shape[axis] - 1 - high, high), axis) if high else None
    return _surrounded(before, x, after, axis)


def _surrounded(before: Tensor | None, x: Tensor, after: Tensor | None, axis: int) -> Tensor:
    parts = [part for part in (before, x, after) if part is not None and part.shape[axis]]
    return primitives.concat(parts, axis)
