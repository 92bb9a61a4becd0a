"""Functionals that give the elements another shape, order or type without arithmetic on them.

They take every element type. Axes may be negative and then count from the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import Axes, axes_of, axis_of, converted, expand
from gptrs.ir.dtypes import DTypeLike, dtype_of
from gptrs.ir.shapes import broadcastable_to
from gptrs.ir.symbolic_dim import SymbolicDim, UnknownSizeError


@functional
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """x converted to `dtype` by the rules of the op `cast`; x itself if it has that type."""
    wanted = dtype_of(dtype)
    if x.dtype.is_complex and not (wanted.is_complex or wanted.is_bool):
        raise UsageError(f"`cast` of `{x.type}` to {wanted} would drop the imaginary part")
    return converted(x, wanted)


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
    """Drop the named axes of size 1, or for None all of size 1 (`np.squeeze`).

    For None, a symbolic size must be more than 1.
    """
    if axis is None:
        kept = [dim for dim in x.shape if dim != 1]
        one = [dim for dim in kept if isinstance(dim, SymbolicDim) and not dim > 1]
        if one:
            raise UnknownSizeError(f"cannot drop an axis of the size `{one[0]}`", one)
        return primitives.reshape(x, tuple(kept))
    axes = axes_of("squeeze", axis, x)
    for along in axes:
        if x.shape[along] != 1:
            raise UsageError(f"`squeeze` of `{x.type}` cannot drop axis {along}, it is not 1")
    kept = tuple(dim for along, dim in enumerate(x.shape) if along not in axes)
    return primitives.reshape(x, kept)


@functional
def expand_dims(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert an axis of size 1 at each named position of the result (`np.expand_dims`)."""
    several = [axis] if isinstance(axis, int) else axis
    rank = x.rank + len(several)
    places = {place % rank for place in several if -rank <= place < rank}
    if len(places) != len(several):
        reason = f"needs places in a result of {rank} axes, each once, got {list(several)}"
        raise UsageError(f"`expand_dims` of `{x.type}` {reason}")
    dims = iter(x.shape)
    return primitives.reshape(x, tuple(1 if i in places else next(dims) for i in range(rank)))


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
    """x repeated to `shape`: axes align at the right, each dim of x is 1 or that of `shape`."""
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
    # The op walks forward: what goes backward is read from its last element on and turned.
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
    """The elements in reverse order along the axes named, or for None along all (`np.flip`)."""
    return primitives.reverse(x, axes_of("flip", axis, x))


def _walk(dim: int, start: int | None, stop: int | None, step: int | None) -> range:
    """Return the positions that `start:stop:step` names on an axis of size `dim`."""
    return range(dim)[start:stop:step]
