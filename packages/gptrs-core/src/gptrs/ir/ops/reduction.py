"""Ops that combine the elements along some axes: into one, or into running totals."""

from __future__ import annotations

from typing import Literal

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import exceeds, is_nonzero
from gptrs.ir.tensor_type import TensorType


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return `shape` without `axes`, or with size 1 for them."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


@op("reduce")
class Reduce(Op):
    """`kind` over `axes`: sum, prod (numbers), max, min (reals), and, or (`i1`, integers).

    Over no elements the result is the identity: 0, 1, the least value or -inf, the greatest value
    or inf, all ones (`i1`: true), 0; f8e4m3, which has no infinities, has -448 and 448 there. max
    and min propagate NaN; of zeros of both signs either may be the result.

    Sums and products are kept in `accum_dtype` (default: f32 for 8- and 16-bit floats, else the
    type of `x`): each element is converted to it, integers wrap in it, floats may be combined in
    any order, and where it is a float of 8 or 16 bits, partial totals may be kept in f32, while the
    total is rounded to it. The total is then converted as by `cast` to `out_dtype` (default: the
    type of `x`), which for the other kinds is a conversion of the result. Both must be of the
    kind of the type of `x`, integers of any width and sign counting as one kind. `axes` ascend
    without repetition; empty `axes` are legal and only convert. `keepdims` keeps each with size 1.

    Refused: an element type that `kind` does not take, axes that `x` does not have, are repeated
    or do not ascend, `accum_dtype` for another kind than sum and prod, and types of another kind.
    """

    kind: Literal["sum", "prod", "max", "min", "and", "or"]
    axes: tuple[int, ...]
    keepdims: bool = False
    accum_dtype: DType | None = None
    out_dtype: DType | None = None

    def infer(self, x: TensorType) -> TensorType:
        """Return the reduced shape in `out_dtype`."""
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
        """Return the type in which the running value is kept for an operand of type `x`."""
        if self.kind in ("sum", "prod"):
            return self.accum_dtype or x.dtype.accumulator
        return x.dtype


class ArgExtreme(Op):
    """Common base of `argmax` and `argmin`: an index along one axis that must not be empty."""

    axis: int
    keepdims: bool
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        """Return `dtype` with the shape without `axis`, or with size 1 on it."""
        self.require_kind(x, "bool", "signed", "unsigned", "float")
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        if not is_nonzero(x.shape[self.axis]):
            raise self.error(f"has no extreme: axis {self.axis} is empty", x)
        require_index_dtype(self, self.dtype, x, self.axis)
        return TensorType(self.dtype, reduced_shape(x.shape, (self.axis,), self.keepdims))


@op("argmax")
class Argmax(ArgExtreme):
    """Index of the largest element along `axis`: the first of equals; a NaN counts as largest.

    Reals and `i1` (true is larger); -0.0 equals 0.0, and the first NaN wins. `keepdims` keeps
    `axis` with size 1. `dtype` is si32 or si64. Refused: an `axis` that `x` does not have or that
    is empty (other dims may be 0), and one of more than 2^31 elements with si32.
    """

    axis: int
    keepdims: bool = False
    dtype: DType = dtypes.si64


@op("argmin")
class Argmin(ArgExtreme):
    """Index of the least element along `axis`: the first of equals; a NaN counts as the least.

    Element types, `keepdims`, `dtype` and errors are as for `argmax`.
    """

    axis: int
    keepdims: bool = False
    dtype: DType = dtypes.si64


@op("cumulative")
class Cumulative(Op):
    """`kind` over the elements along `axis` up to each: sum, prod (numbers), max, min (reals).

    `out[.., i, ..] = kind of x[.., j, ..]` over `j <= i`; with `reverse` over `j >= i`. `exclusive`
    leaves `j = i` out, so that the first (with `reverse` the last) is the identity: 0, 1, the least
    value or -inf, the greatest value or inf; f8e4m3, which has no infinities, has -448 and 448
    there. max and min propagate NaN; of zeros of both signs either may be the result.

    Sums and products are kept in `accum_dtype` and each result is converted to `out_dtype`, by the
    rules and with the defaults of `reduce`; the result has the shape of `x`, which may be empty.
    Refused: an element type that `kind` does not take, an `axis` that `x` does not have,
    `accum_dtype` for max and min, and types of another kind.
    """

    kind: Literal["sum", "prod", "max", "min"]
    axis: int
    reverse: bool = False
    exclusive: bool = False
    accum_dtype: DType | None = None
    out_dtype: DType | None = None

    def infer(self, x: TensorType) -> TensorType:
        """Return the shape of `x` in `out_dtype`."""
        if self.kind in ("max", "min"):
            self.require_kind(x, "signed", "unsigned", "float")
            if self.accum_dtype is not None:
                raise self.error(f"of kind {self.kind} takes no accum_dtype", x)
        else:
            self.require_kind(x, "signed", "unsigned", "float", "complex")
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        require_kindred(self, x, self.accum_dtype, self.out_dtype)
        return x.with_dtype(self.out_dtype or x.dtype)

    def accumulator(self, x: TensorType) -> DType:
        """Return the type in which the running value is kept for an operand of type `x`."""
        if self.kind in ("sum", "prod"):
            return self.accum_dtype or x.dtype.accumulator
        return x.dtype


def require_ascending_axes(op: Op, axes: tuple[int, ...], x: TensorType) -> None:
    """ProgramError unless `axes` are axes of `x` in ascending order, each once."""
    if list(axes) != sorted({axis for axis in axes if 0 <= axis < x.rank}):
        raise op.error(f"needs ascending axes in [0, {x.rank}), got {list(axes)}", x)


def require_kindred(op: Op, x: TensorType, *chosen: DType | None) -> None:
    """Raise ProgramError unless accumulate and output types are of the kind (integer, float,
    complex) of `x`."""
    for dtype in chosen:
        if dtype is None or dtype is x.dtype:
            continue
        if not _kindred(x.dtype, dtype):
            raise op.error(f"cannot accumulate in or return {dtype}", x)


def require_index_dtype(op: Op, dtype: DType, x: TensorType, axis: int) -> None:
    """Raise ProgramError unless `dtype` is si32 or si64 and holds every index along `axis` of
    `x`."""
    if dtype not in (dtypes.si32, dtypes.si64):
        raise op.error(f"needs indices of si32 or si64, got {dtype}", x)
    if dtype is dtypes.si32 and exceeds(x.shape[axis], 2**31):
        raise op.error(f"needs indices of si64 for the size of axis {axis}", x)


def _kindred(a: DType, b: DType) -> bool:
    return (a.is_integer and b.is_integer) or (a.kind == b.kind and not a.is_bool)
