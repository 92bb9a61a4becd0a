"""Ops that combine the elements along some axes into one."""

from __future__ import annotations

from typing import Literal

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """`shape` without `axes`, or with 1 in their place."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


@op("reduce")
class Reduce(Op):
    """`kind` over `axes`: sum, prod (numbers), max, min (reals), and, or (`i1`, integers).

    Over no elements the result is the identity: 0, 1, the least value (-inf), the greatest value
    (inf), all ones, 0. max and min propagate NaN. Sums and products are kept in `accum_dtype`
    (default: f32 for 8- and 16-bit floats, else the type of `x`; integers wrap in it) and
    converted as by `cast` to `out_dtype` (default: the type of `x`). Both must be of the kind of
    the type of `x`; `accum_dtype` is for sum and prod only. `axes` ascend without repetition; none
    at all is legal and only converts.
    """

    kind: Literal["sum", "prod", "max", "min", "and", "or"]
    axes: tuple[int, ...]
    keepdims: bool = False
    accum_dtype: DType | None = None
    out_dtype: DType | None = None

    def infer(self, x: TensorType) -> TensorType:
        """The reduced shape in `out_dtype`."""
        if self.kind in ("and", "or"):
            self.require_kind(x, "bool", "signed", "unsigned")
        elif self.kind in ("max", "min"):
            self.require_kind(x, "signed", "unsigned", "float")
        else:
            self.require_kind(x, "signed", "unsigned", "float", "complex")
        if self.accum_dtype is not None and self.kind not in ("sum", "prod"):
            raise self.error(f"of kind {self.kind} takes no accum_dtype", x)
        require_ascending_axes(self, self.axes, x)
        require_kindred(self, x, self.accum_dtype, self.out_dtype)
        shape = reduced_shape(x.shape, self.axes, self.keepdims)
        return TensorType(self.out_dtype or x.dtype, shape)

    def accumulator(self, x: TensorType) -> DType:
        """The type in which the running value is kept for an operand of type `x`."""
        if self.kind in ("sum", "prod"):
            return self.accum_dtype or x.dtype.accumulator
        return x.dtype


class ArgExtreme(Op):
    """What `argmax` and `argmin` share: an index along one axis that must not be empty."""

    axis: int
    keepdims: bool
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        """The shape without `axis` (or 1 in its place) in `dtype`."""
        self.require_kind(x, "bool", "signed", "unsigned", "float")
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        if x.shape[self.axis] == 0:
            raise self.error(f"has no extreme: axis {self.axis} is empty", x)
        if self.dtype not in (dtypes.si32, dtypes.si64):
            raise self.error(f"needs dtype si32 or si64, got {self.dtype}", x)
        return TensorType(self.dtype, reduced_shape(x.shape, (self.axis,), self.keepdims))


@op("argmax")
class Argmax(ArgExtreme):
    """Index of the largest element along `axis`: the first of equals; a NaN counts as largest."""

    axis: int
    keepdims: bool = False
    dtype: DType = dtypes.si64


@op("argmin")
class Argmin(ArgExtreme):
    """Index of the least element along `axis`: the first of equals; a NaN counts as the least."""

    axis: int
    keepdims: bool = False
    dtype: DType = dtypes.si64


def require_ascending_axes(op: Op, axes: tuple[int, ...], x: TensorType) -> None:
    """ProgramError unless `axes` are axes of `x` in ascending order, each once."""
    if list(axes) != sorted({axis for axis in axes if 0 <= axis < x.rank}):
        raise op.error(f"needs ascending axes in [0, {x.rank}), got {list(axes)}", x)


def require_kindred(op: Op, x: TensorType, *chosen: DType | None) -> None:
    """ProgramError unless accumulate and output types are integer, float or complex as `x` is."""
    for dtype in chosen:
        if dtype is None or dtype is x.dtype:
            continue
        if not _kindred(x.dtype, dtype):
            raise op.error(f"cannot accumulate in or return {dtype}", x)


def _kindred(a: DType, b: DType) -> bool:
    return (a.is_integer and b.is_integer) or (a.kind == b.kind and not a.is_bool)
