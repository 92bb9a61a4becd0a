"""Ops that move elements without computing on them."""

from __future__ import annotations

import math

from gptrs.ir.op import Op, op
from gptrs.ir.shapes import Shape, broadcastable_to
from gptrs.ir.tensor_type import TensorType


@op("reshape")
class Reshape(Op):
    """The elements in row-major order under another `shape`; one dim may be -1 and is inferred.

    -1 is refused where the other dims multiply to 0, since any value would fit.
    """

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        """`shape`, with -1 resolved, in the element type of `x`."""
        wild = self.shape.count(-1)
        known = math.prod(dim for dim in self.shape if dim != -1)
        shape = self.shape
        if wild == 1 and known and x.size % known == 0:
            shape = tuple(x.size // known if dim == -1 else dim for dim in shape)
        if min(shape, default=0) < 0 or math.prod(shape) != x.size:
            reason = f"to {list(self.shape)} does not keep the number of elements, {x.size}"
            raise self.error(reason, x)
        return x.with_shape(shape)


@op("transpose")
class Transpose(Op):
    """Axis `i` of the result is axis `permutation[i]` of `x`."""

    permutation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        """The permuted shape."""
        if sorted(self.permutation) != list(range(x.rank)):
            reason = f"needs a permutation of {x.rank} axes, got {list(self.permutation)}"
            raise self.error(reason, x)
        return x.with_shape(tuple(x.shape[axis] for axis in self.permutation))


@op("broadcast_to")
class BroadcastTo(Op):
    """`x` repeated to `shape`: axes align at the right, each dim of `x` is 1 or that of `shape`."""

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        """`shape` in the element type of `x`."""
        if not broadcastable_to(x.shape, self.shape):
            reason = f"to {list(self.shape)} needs each dim, aligned at the right, equal or 1"
            raise self.error(reason, x)
        return x.with_shape(self.shape)


@op("slice")
class Slice(Op):
    """`sizes[i]` elements of axis `i` from `starts[i]` on, in steps of `strides[i]` (default 1)."""

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
            end = start + (size - 1) * step + 1 if size else start
            if end > x.shape[axis]:
                raise self.error(f"reads up to {end} on axis {axis}, past its size", x)
        return x.with_shape(self.sizes)

    def steps(self, rank: int) -> tuple[int, ...]:
        """The strides with the default written out."""
        return (1,) * rank if self.strides is None else self.strides


@op("concat")
class Concat(Op):
    """The operands one after another along `axis`; all other dims are equal."""

    axis: int

    def infer(self, x: TensorType, *more: TensorType) -> TensorType:
        """The shape of `x` with the sizes along `axis` added up."""
        self.require_same_dtype(x, *more)
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x, *more)
        for other in more:
            if other.rank != x.rank or not _equal_but(self.axis, x.shape, other.shape):
                reason = f"needs equal dims on every axis but {self.axis}"
                raise self.error(reason, x, *more)
        total = sum(part.shape[self.axis] for part in (x, *more))
        return x.with_shape((*x.shape[: self.axis], total, *x.shape[self.axis + 1 :]))


def _equal_but(axis: int, a: Shape, b: Shape) -> bool:
    return a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]
