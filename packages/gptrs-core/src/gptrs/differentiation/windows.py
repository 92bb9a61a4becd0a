"""Derivative rules of sliding-window ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor, apply
from gptrs.differentiation.rules import Cotangents, Step, rule, total, where, zeros
from gptrs.errors import UsageError
from gptrs.functionals.operands import converted
from gptrs.ir.ops.window import AxisWindow, ExtractPatches, ReduceWindow


def _spread(count: int, stride: int) -> int:
    """Return the extent from the first to the last position, as `pad` with interior values counts
    it."""
    return count + (count - 1) * (stride - 1) if stride > 1 and count else count


class _Offset:
    """One element of the window: the elements it reads at all positions form a strided slice of the
    operand."""

    def __init__(
        self, axes: Sequence[AxisWindow], dims: Sequence[int], out: Sequence[int], at: Sequence[int]
    ) -> None:
        """`dims` are those of the operand, `out` the numbers of positions."""
        self.strides = [axis.stride for axis in axes]
        self.low = [number * axis.dilation for number, axis in zip(at, axes, strict=True)]
        self.high = [
            axis.padded(dim) - low - _spread(count, axis.stride)
            for axis, dim, low, count in zip(axes, dims, self.low, out, strict=True)
        ]
        self._trimmed = [(axis.low, axis.high) for axis in axes]

    def back(self, g: Tensor, outer: int) -> Tensor:
        """Return `g`, one value per position, scattered to the elements read, zeros elsewhere.

        The `outer` first and last axes are kept; padding is dropped.
        """
        low, high, between = [
            [*[0] * outer, *values, *[0] * outer]
            for values in (
                [start - pad for start, (pad, _) in zip(self.low, self._trimmed, strict=True)],
                [end - pad for end, (_, pad) in zip(self.high, self._trimmed, strict=True)],
                [stride - 1 for stride in self.strides],
            )
        ]
        return p.pad(g, low, high, between)


def _offsets(
    axes: Sequence[AxisWindow], dims: Sequence[int], out: Sequence[int]
) -> Iterator[_Offset]:
    for at in itertools.product(*(range(axis.size) for axis in axes)):
        yield _Offset(axes, dims, out, at)


@rule(ExtractPatches)
def _extract_patches(step: Step[ExtractPatches], g: Tensor) -> Cotangents:
    """Sum over the window's elements the cotangents put back where each was read."""
    (x,), channels = step.operands, step.operands[0].shape[-1]
    sizes = [*g.shape[:-1], channels]
    parts: list[Tensor] = []
    # One strided pad per element of the window: a 3x3 window adds 9 arrays, whatever the image's
    # size. A scatter would have an index per element.
    for number, offset in enumerate(_offsets(step.op.axes(), x.shape[1:-1], g.shape[1:-1])):
        starts = [*[0] * (x.rank - 1), number * channels]
        parts.append(offset.back(p.slice(g, starts, sizes), 1))
    return [total(parts)]


@rule(ReduceWindow)
def _reduce_window(step: Step[ReduceWindow], g: Tensor) -> Cotangents:
    (x,), (y,), op = step.operands, step.results, step.op
    if op.kind == "prod":
        raise UsageError(
            "`reduce_window` of kind prod has no derivative",
            hint="for positive elements take `exp` of a windowed sum of their `log`",
        )
    g = converted(g, x.dtype)
    if op.kind == "sum":
        return [_spread_sums(step.op.axes(), x, g)]
    if not y.size:
        return [zeros(x)]
    return [_to_first_extremes(step, x, y, g)]


def _spread_sums(axes: Sequence[AxisWindow], x: Tensor, g: Tensor) -> Tensor:
    """Return the transpose of windowed sums: a windowed sum over `g` dilated by the strides."""
    reaches = [(axis.size - 1) * axis.dilation for axis in axes]
    low = [reach - axis.low for reach, axis in zip(reaches, axes, strict=True)]
    spread = [_spread(count, axis.stride) for count, axis in zip(g.shape, axes, strict=True)]
    high = [
        dim + reach - before - used
        for dim, reach, before, used in zip(x.shape, reaches, low, spread, strict=True)
    ]
    wide = p.pad(g, low, high, [axis.stride - 1 for axis in axes])
    sizes, dilation = [axis.size for axis in axes], [axis.dilation for axis in axes]
    return p.reduce_window(wide, "sum", sizes, dilation=dilation)


def _to_first_extremes(step: Step[ReduceWindow], x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return the sum of the cotangents of all windows in which an element is the first extreme.

    This matches torch; a NaN is an extreme. Cotangents that fall on padding, in a window of only
    infinities, are dropped.
    """
    op, axes = step.op, step.op.axes()
    wide_type = x.dtype.accumulator  # f8e4m3 has no infinity
    if y.dtype is not x.dtype:  # rounded, so that no element may equal it
        y = apply(replace(op, out_dtype=None), x)
    x, y = converted(x, wide_type), converted(y, wide_type)
    least = -math.inf if step.op.kind == "max" else math.inf
    wide = p.pad(x, [axis.low for axis in axes], [axis.high for axis in axes], None, least)
    parts: list[Tensor] = []
    free: Tensor | None = None
    for offset in _offsets(axes, x.shape, y.shape):
        read = p.slice(wide, offset.low, y.shape, offset.strides)
        hit = p.bit_or(p.compare(read, y, "eq"), p.compare(read, read, "ne"))
        # Each window gives its cotangent once: `free` marks the windows that have not found their
        # extreme yet.
        first = hit if free is None else p.bit_and(hit, free)
        missed = p.logical_not(hit)
        free = missed if free is None else p.bit_and(free, missed)
        parts.append(offset.back(where(first, g), 0))
    return total(parts)
