"""Functionals that make, move and convert elements without arithmetic on them."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.operands import axis_of
from gptrs.functionals.registry import functional
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType


@functional
def arange(count: int, start: int = 0) -> Tensor:
    """si64 [count]: start, start + 1, ..."""
    if count < 0:
        raise UsageError(f"`arange` needs a count >= 0, got {count}")
    indices = primitives.iota((count,), 0, dtypes.si64)
    return indices + start if start else indices


@functional
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in row-major order under another shape; one dim may be -1."""
    return primitives.reshape(x, shape)


@functional
def transpose(x: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axis i of the result is axis `permutation[i]` of x; without one the axes are reversed."""
    return primitives.transpose(x, range(x.rank)[::-1] if permutation is None else permutation)


@functional
def cast(x: Tensor, dtype: DType) -> Tensor:
    """x converted to `dtype` by the rules of the op `cast`; x itself if it has that type."""
    return x if x.dtype is dtype else primitives.cast(x, dtype)


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
def split(x: Tensor, parts: int, axis: int = -1) -> tuple[Tensor, ...]:
    """`parts` equal pieces along `axis`; UsageError when its size is not divisible."""
    along = axis_of("split", axis, x)
    if parts < 1 or x.shape[along] % parts:
        raise UsageError(f"`split` cannot cut axis {along} of `{x.type}` into {parts} equal parts")
    size = x.shape[along] // parts
    return tuple(slice_axis(x, along, part * size, size) for part in range(parts))


@functional
def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The parts one after another along `axis`; UsageError for no parts."""
    if not parts:
        raise UsageError("`concat` needs at least one tensor")
    return primitives.concat(parts, axis)
