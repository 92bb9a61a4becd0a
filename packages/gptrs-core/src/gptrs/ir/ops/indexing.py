"""Ops that read or write at positions given by another tensor."""

from __future__ import annotations

from gptrs.ir.op import Op, op
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType


@op("take")
class Take(Op):
    """Rows by number: `out[i.., j..] = x[indices[i..], j..]`.

    An index outside [0, x.shape[0]) is an execution error, raised before any row is read.
    """

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        """The shape of `indices`, then the dims of a row."""
        self.require_kind(indices, "signed", "unsigned")
        if x.rank == 0:
            raise self.error("needs at least one axis to look up in", x, indices)
        return x.with_shape(indices.shape + x.shape[1:])


@op("gather")
class Gather(Op):
    """Elements by index along `axis`: `out[.., i, ..] = x[.., indices[.., i, ..], ..]`.

    `indices` has the rank of `x` and is no larger on any other axis. An index outside
    [0, x.shape[axis]) is an execution error, raised before any element is read.
    """

    axis: int

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        """The shape of `indices` in the element type of `x`."""
        self.require_kind(indices, "signed", "unsigned")
        if x.rank != indices.rank or not 0 <= self.axis < x.rank:
            raise self.error(f"needs operands of one rank that have axis {self.axis}", x, indices)
        for axis, (have, want) in enumerate(zip(x.shape, indices.shape, strict=True)):
            if axis != self.axis and want > have:
                raise self.error(f"reads {want} of {have} on axis {axis}", x, indices)
        return x.with_shape(indices.shape)


@op("dynamic_slice")
class DynamicSlice(Op):
    """A block of `sizes` that begins at `starts`, an integer vector with one entry an axis.

    Each start is clamped to [0, dim - size], so that the block always lies inside `x`.
    """

    sizes: Shape

    def infer(self, x: TensorType, starts: TensorType) -> TensorType:
        """`sizes` in the element type of `x`."""
        _require_starts(self, x, starts)
        if len(self.sizes) != x.rank or any(
            not 0 <= size <= dim for size, dim in zip(self.sizes, x.shape, strict=False)
        ):
            raise self.error(f"needs {x.rank} sizes within its dims, got {list(self.sizes)}", x)
        return x.with_shape(self.sizes)


@op("dynamic_update_slice")
class DynamicUpdateSlice(Op):
    """`x` with the block at `starts` replaced by `update`; starts clamp as in dynamic_slice."""

    def infer(self, x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        """The type of `x`."""
        self.require_same_dtype(x, update)
        _require_starts(self, x, starts)
        if update.rank != x.rank or any(
            size > dim for size, dim in zip(update.shape, x.shape, strict=True)
        ):
            raise self.error("needs an update of the same rank, no larger on any axis", x, update)
        return x


def _require_starts(op: Op, x: TensorType, starts: TensorType) -> None:
    op.require_kind(starts, "signed", "unsigned")
    if starts.shape != (x.rank,):
        raise op.error(f"needs a vector of {x.rank} starts", x, starts)
