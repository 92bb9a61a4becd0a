"""Ops that look at every position of a box that slides over a tensor."""

from __future__ import annotations

import math
from typing import Literal, cast

from msgspec import Struct

from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Scalar
from gptrs.ir.op import Op, op
from gptrs.ir.ops.reduction import require_kindred
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType


class AxisWindow(Struct, frozen=True):
    """How a window moves along one axis: position `o` reads `o * stride - low + k * dilation`."""

    size: int
    stride: int
    low: int
    high: int
    dilation: int

    def padded(self, dim: int) -> int:
        """Return the size of an axis of `dim` elements with its padding."""
        return self.low + dim + self.high

    def positions(self, dim: int) -> int:
        """Return the number of window positions on an axis of `dim` elements, padding included."""
        if self.size == self.stride == 1:
            return self.padded(dim)
        reach = (self.size - 1) * self.dilation + 1
        return max((self.padded(dim) - reach) // self.stride + 1, 0)


class Windowed:
    """Mixin of the window ops: the lists that describe the window, with their defaults."""

    __slots__ = ()

    window: tuple[int, ...]
    strides: tuple[int, ...] | None
    padding: tuple[int, ...] | None
    dilation: tuple[int, ...] | None

    def axes(self) -> tuple[AxisWindow, ...]:
        """Return the window of each axis, defaults written out."""
        ones = (1,) * len(self.window)
        strides = ones if self.strides is None else self.strides
        padding = (0, 0) * len(self.window) if self.padding is None else self.padding
        dilation = ones if self.dilation is None else self.dilation
        columns = (self.window, strides, padding[::2], padding[1::2], dilation)
        return tuple(AxisWindow(*entries) for entries in zip(*columns, strict=True))

    def positions(self, x: TensorType, outer: int) -> Shape:
        """Return the number of positions on each axis of `x` except the `outer` first and last
        axes.

        ProgramError for lists that do not describe windows, and for padding beyond all bounds.
        """
        dims = x.shape[outer : x.rank - outer]
        for name, values, count, least in (
            ("window", self.window, len(dims), 1),
            ("strides", self.strides, len(dims), 1),
            ("padding", self.padding, 2 * len(dims), 0),
            ("dilation", self.dilation, len(dims), 1),
        ):
            # Each alone: comparing symbolic paddings with one another would need guards.
            if values is None or (len(values) == count and all(each >= least for each in values)):
                continue
            wanted = f"needs {count} integers >= {least} in `{name}`"
            raise cast("Op", self).error(f"{wanted}, got {list(values)}", x)
        pairs = list(zip(self.axes(), dims, strict=True))
        padded = tuple(axis.padded(dim) for axis, dim in pairs)
        x.with_shape((*x.shape[:outer], *padded, *x.shape[x.rank - outer :]))
        return tuple(axis.positions(dim) for axis, dim in pairs)


@op("reduce_window")
class ReduceWindow(Windowed, Op):
    """`kind` over the elements under each position of a window with one size an axis of `x`.

    `out[o..] = kind over k.., 0 <= k < window, of x[o * strides + k * dilation - low ..]`. Elements
    outside `x` count as the identity of `kind`: 0 (sum), 1 (prod), the least value or -inf (max),
    the greatest value or inf (min); so does a window without elements. `padding` is `[low0, high0,
    low1, high1, ...]`. Each result dim is `floor((low + dim + high - ((window - 1) * dilation + 1))
    / stride) + 1`, and 0 where that is negative. Default: strides and dilation of 1, no padding.

    sum and prod take numbers, max and min reals; NaN propagates. Sums and products are kept in
    `accum_dtype` (default: f32 for 8- and 16-bit floats, else the type of `x`; integers wrap in
    it) and converted as by `cast` to `out_dtype` (default: the type of `x`). Both must be of the
    same kind as the type of `x`; `accum_dtype` applies only to sum and prod. Refused: lists of
    another length, window, strides or dilation below 1, negative padding, and padding that would
    make `x` larger than a tensor may be.
    """

    kind: Literal["sum", "prod", "max", "min"]
    window: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None
    accum_dtype: DType | None = None
    out_dtype: DType | None = None

    def infer(self, x: TensorType) -> TensorType:
        """The positions on each axis, in `out_dtype`."""
        if self.kind in ("max", "min"):
            self.require_kind(x, "signed", "unsigned", "float")
            if self.accum_dtype is not None:
                raise self.error(f"of kind {self.kind} takes no accum_dtype", x)
        else:
            self.require_kind(x, "signed", "unsigned", "float", "complex")
        require_kindred(self, x, self.accum_dtype, self.out_dtype)
        return TensorType(self.out_dtype or x.dtype, self.positions(x, outer=0))

    def accumulator(self, x: TensorType) -> DType:
        """Return the type in which the running value is kept for an operand of type `x`."""
        if self.kind in ("sum", "prod"):
            return self.accum_dtype or x.dtype.accumulator
        return x.dtype


@op("extract_patches")
class ExtractPatches(Windowed, Op):
    """The elements under each position of a window over the spatial axes, side by side.

    `x` is (N, spatial.., C), channels last, of any element type; the result is
    (N, out.., prod(window) * C), `out..` as in `reduce_window`. `window`, `strides`, `padding`
    (`[low0, high0, ...]`) and `dilation` have entries for the spatial axes only. Within the last
    axis the window positions are in row-major order, and the channels of each together:
    `out[n, o.., k * C + c] = x[n, o * strides + k.. * dilation - low .., c]` for the `k`-th window
    position `k..`. What lies outside `x` is `value` (default: 0). With no spatial axes the result
    is `x`. Refused: rank below 2, a `value` of another type, and what `reduce_window` refuses.
    """

    window: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None
    value: Scalar | None = None

    def infer(self, x: TensorType) -> TensorType:
        """(N, positions.., prod(window) * C)."""
        if x.rank < 2:
            raise self.error("needs (N, spatial.., C): at least 2 axes", x)
        if self.value is not None and self.value.type.dtype is not x.dtype:
            raise self.error(f"needs a value of the same type, got {self.value.type.dtype}", x)
        positions = self.positions(x, outer=1)
        return x.with_shape((x.shape[0], *positions, math.prod(self.window) * x.shape[-1]))
