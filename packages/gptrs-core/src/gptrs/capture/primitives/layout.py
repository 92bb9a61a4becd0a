"""Primitives that move elements without computing on them."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.literal import Literal, Scalar
from gptrs.ir.ops import layout
from gptrs.ir.shapes import normalize_axes, normalize_axis


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the elements under another shape; one dim may be -1."""
    resolved = layout.Reshape(tuple(shape)).infer(x.type).shape
    return apply(layout.Reshape(resolved), x)


def transpose(x: Tensor, permutation: Sequence[int]) -> Tensor:
    """Axis i of the result is axis permutation[i] of x."""
    normal = tuple(normalize_axis(axis, x.rank, "`transpose`") for axis in permutation)
    return apply(layout.Transpose(normal), x)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated to shape, aligned at the right."""
    return apply(layout.BroadcastTo(tuple(shape)), x)


def slice(
    x: Tensor, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int] | None = None
) -> Tensor:
    """Return a block of x at a fixed place."""
    steps = None if strides is None or set(strides) <= {1} else tuple(strides)
    return apply(layout.Slice(tuple(starts), tuple(sizes), steps), x)


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return the parts one after another along axis."""
    rank = parts[0].rank if parts else 0
    return apply(layout.Concat(normalize_axis(axis, rank, "`concat`")), *parts)


def pad(
    x: Tensor,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
    value: complex | None = None,
) -> Tensor:
    """x with value (default: 0) around and between its elements; one entry an axis, < 0 trims."""
    between = None if interior is None or set(interior) <= {0} else tuple(interior)
    fill = None if value is None else Scalar(Literal.full(value, x.dtype))
    return apply(layout.Pad(tuple(low), tuple(high), between, fill), x)


def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """x side by side with itself; one number of repeats an axis."""
    return apply(layout.Tile(tuple(repeats)), x)


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the elements in reverse order along each of axes."""
    return apply(layout.Reverse(normalize_axes(axes, x.rank, "`reverse`")), x)
