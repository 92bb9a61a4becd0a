"""Ops that move elements without computing on them: of every element type, bit for bit."""

from __future__ import annotations

import math

from gptrs.ir.literal_text import Scalar
from gptrs.ir.op import Op, op
from gptrs.ir.ops.reduction import require_ascending_axes
from gptrs.ir.size_guards import Shape, broadcastable_to
from gptrs.ir.symbolic_dim import is_nonzero
from gptrs.ir.tensor_type import TensorType


@op("reshape")
class Reshape(Op):
    """The elements in row-major order under another `shape`; one dim may be -1 and is inferred.

    `x` is of any element type. Refused: a `shape` of another number of elements, a second -1, and
    -1 where the other dims multiply to 0, since any value would fit.
    """

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        """`shape`, with -1 resolved, in the element type of `x`."""
        wild = self.shape.count(-1)
        known = math.prod(dim for dim in self.shape if dim != -1)
        shape = self.shape
        if wild == 1 and is_nonzero(known) and x.size % known == 0:
            shape = tuple(x.size // known if dim == -1 else dim for dim in shape)
        if any(dim < 0 for dim in shape) or math.prod(shape) != x.size:
            reason = f"to {list(self.shape)} does not keep the number of elements, {x.size}"
            raise self.error(reason, x)
        return x.with_shape(shape)


@op("transpose")
class Transpose(Op):
    """Axis `i` of the result is axis `permutation[i]` of `x`.

    `x` is of any element type. Refused: a `permutation` that does not hold each axis of `x` once.
    """

    permutation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        """The permuted shape."""
        if sorted(self.permutation) != list(range(x.rank)):
            reason = f"needs a permutation of {x.rank} axes, got {list(self.permutation)}"
            raise self.error(reason, x)
        return x.with_shape(tuple(x.shape[axis] for axis in self.permutation))


@op("broadcast_to")
class BroadcastTo(Op):
    """`x` repeated to `shape`: axes align at the right, each dim of `x` is 1 or equal to that of
    `shape`.

    `out[.., i..] = x[j..]` with `j = 0` on an axis where `x` has 1 and `j = i` elsewhere. `x` is of
    any element type. 1 becomes 0 where `shape` has 0. Refused: a `shape` of lower rank, and dims
    that differ where `x` does not have 1.
    """

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        """`shape` in the element type of `x`."""
        if not broadcastable_to(x.shape, self.shape):
            reason = f"to {list(self.shape)} needs each dim, aligned at the right, equal or 1"
            raise self.error(reason, x)
        return x.with_shape(self.shape)


@op("slice")
class Slice(Op):
    """`sizes[i]` elements of axis `i` from `starts[i]` on, in steps of `strides[i]` (default 1).

    `out[i..] = x[starts + i * strides ..]`, `0 <= i < sizes`, for `x` of any element type. Refused:
    lists of another length than `x` has axes, negative starts or sizes, strides below 1, and a
    block that ends past its axis; an empty block may start where the axis ends.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def infer(self, x: TensorType) -> TensorType:
        """`sizes` in the element type of `x`."""
        strides = self.steps(x.rank)
        if not len(self.starts) == len(self.sizes) == len(strides) == x.rank:
            raise self.error(f"needs {x.rank} starts, sizes and strides", x)
        for axis, (start, size, step) in enumerate(
            zip(self.starts, self.sizes, strides, strict=True)
        ):
            if step < 1 or size < 0 or start < 0:
                reason = f"needs start >= 0, size >= 0, stride >= 1 on axis {axis}"
                raise self.error(f"{reason}, got {start}, {size}, {step}", x)
            end = start if size == 0 else start + (size - 1) * step + 1
            # A symbolic size that is positive in the example may be 0 for other sizes, so its start
            # is checked, too.
            if start > x.shape[axis] or end > x.shape[axis]:
                raise self.error(f"reads up to {end} on axis {axis}, past its size", x)
        return x.with_shape(self.sizes)

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the strides with the default written out."""
        return (1,) * rank if self.strides is None else self.strides


@op("concat")
class Concat(Op):
    """The operands, at least one, one after another along `axis`.

    They have one element type, any, and equal dims on every other axis; along `axis` they may be
    empty. Refused: operands of rank 0, and an `axis` that they do not have.
    """

    axis: int

    def infer(self, x: TensorType, *more: TensorType) -> TensorType:
        """Return the shape of `x` with the sizes along `axis` added up."""
        self.require_same_dtype(x, *more)
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x, *more)
        for other in more:
            if other.rank != x.rank or not _equal_but(self.axis, x.shape, other.shape):
                reason = f"needs equal dims on every axis but {self.axis}"
                raise self.error(reason, x, *more)
        total = sum(part.shape[self.axis] for part in (x, *more))
        return x.with_shape((*x.shape[: self.axis], total, *x.shape[self.axis + 1 :]))


@op("pad")
class Pad(Op):
    """`value` put between the elements of `x` and around them, or elements trimmed from its ends.

    `out[o..] = x[i..]` where `o = low + i * (interior + 1)` on every axis for some `0 <= i < dim`,
    else `value`. Each result dim is `low + dim + interior * max(dim - 1, 0) + high`: first
    `interior` values go between neighbours, then `low` and `high` to the ends, where a negative one
    takes as many elements away, of `x` or put in between. A side may trim everything and more if
    the other adds enough: then all elements are `value`.

    The lists have one integer an axis, `interior` none below 0 (default: 0 on each). `x` is of any
    element type, `value` of the same (default: 0, false for `i1`); bits are kept, NaN included.
    Refused: lists of another length, a negative `interior`, a `value` of another type, and a result
    dim below 0, which is trimming more than there is.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...] | None = None
    value: Scalar | None = None

    def infer(self, x: TensorType) -> TensorType:
        """Return the padded dims in the element type of `x`."""
        interior = self.between(x.rank)
        if not len(self.low) == len(self.high) == len(interior) == x.rank:
            raise self.error(f"needs {x.rank} integers in `low`, `high` and `interior`", x)
        if self.value is not None and self.value.type.dtype is not x.dtype:
            raise self.error(f"needs a value of the same type, got {self.value.type.dtype}", x)
        sides = zip(self.low, self.high, interior, x.shape, strict=True)
        return x.with_shape(tuple(self._padded(x, axis, *side) for axis, side in enumerate(sides)))

    def _padded(
        self, x: TensorType, axis: int, low: int, high: int, interior: int, dim: int
    ) -> int:
        if interior < 0:
            raise self.error(f"needs `interior` >= 0 on axis {axis}, got {interior}", x)
        spread = dim + interior * (dim - 1) if interior and dim else dim
        if low + spread + high < 0:
            reason = f"trims axis {axis} by {-low - high}, but has {spread} elements there"
            raise self.error(reason, x)
        return low + spread + high

    def between(self, rank: int) -> tuple[int, ...]:
        """Return the number of values between neighbours on each axis, defaults written out."""
        return (0,) * rank if self.interior is None else self.interior


@op("tile")
class Tile(Op):
    """`x` side by side with itself, `repeats[i]` times along axis `i`.

    `out[o..] = x[o mod dim ..]`; each result dim is `dim * repeats`. `x` is of any element type,
    and 0 repeats give an empty axis. Refused: another number of repeats than axes, and negative
    ones.
    """

    repeats: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        """Return the dims multiplied by `repeats`."""
        if len(self.repeats) != x.rank or any(repeat < 0 for repeat in self.repeats):
            reason = f"needs {x.rank} integers >= 0 in `repeats`, got {list(self.repeats)}"
            raise self.error(reason, x)
        return x.with_shape(tuple(d * n for d, n in zip(x.shape, self.repeats, strict=True)))


@op("reverse")
class Reverse(Op):
    """The elements in reverse order along each of `axes`: `out[.., i, ..] = x[.., dim-1-i, ..]`.

    `x` is of any element type; no axes at all is legal and gives `x`. Refused: axes that do not
    ascend, are repeated, or that `x` does not have.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        """Return the type of `x`."""
        require_ascending_axes(self, self.axes, x)
        return x


def _equal_but(axis: int, a: Shape, b: Shape) -> bool:
    return a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]
