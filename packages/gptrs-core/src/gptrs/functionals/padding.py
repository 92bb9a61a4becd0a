"""Padding at the ends of axes: with a number, with the edge, or with a reflection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import flip, slice_axis
from gptrs.functionals.operands import Number, expand, require_held, require_one_of


@functional
def pad(
    x: Tensor,
    widths: Sequence[tuple[int, int]],
    mode: Literal["constant", "edge", "reflect"] = "constant",
    value: Number = 0,
) -> Tensor:
    """x with `(low, high)` more elements at the ends of each axis, of any element type (`np.pad`).

    "constant" puts `value` there, and a negative width takes elements away; "edge" repeats the
    first and last element; "reflect" mirrors at them, so that a width stays below the dim.
    UsageError for widths that the axis does not allow.
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
    # An i1 holds no numbers, but the default stands for False there.
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
