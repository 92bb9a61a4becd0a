"""Ops that read or write at positions given by another tensor."""

from __future__ import annotations

from typing import Literal

from gptrs.ir.op import Op, op
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType


@op("take")
class Take(Op):
    """Rows by number: `out[i.., j..] = x[indices[i..], j..]`.

    `x` is of any element type and `indices` of any integer type and shape, rank 0 included. An
    index outside [0, x.shape[0]), negative ones too, is an ExecutionError that says `index N`, the
    axis and its size, raised before any row is read. Refused: `x` of rank 0, `indices` of other
    types.
    """

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        """Return the shape of `indices`, then the dims of a row."""
        self.require_kind(indices, "signed", "unsigned")
        if x.rank == 0:
            raise self.error("needs at least one axis to look up in", x, indices)
        return x.with_shape(indices.shape + x.shape[1:])


@op("gather")
class Gather(Op):
    """Elements by index along `axis`: `out[.., i, ..] = x[.., indices[.., i, ..], ..]`.

    `x` is of any element type. `indices`, of any integer type, has the rank of `x`, along `axis`
    any size, and is no larger on the other axes, where only as much of `x` is read. An index
    outside [0, x.shape[axis]), negative ones too, is an ExecutionError that says `index N`, the
    axis and its size, raised before any element is read. Refused: operands of rank 0 or of two
    ranks, an `axis` that they do not have, `indices` larger on another axis or not of integers.
    """

    axis: int

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        """Return the shape of `indices` in the element type of `x`."""
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

    `out[i..] = x[start + i ..]`. Each start is clamped to [0, dim - size], so that the block always
    lies inside `x` and no value is an error. `x` is of any element type, `starts` of any integer
    type; of a tensor of rank 0 it is empty. Refused: another number of starts or sizes than axes,
    sizes that are negative or larger than the dim, starts that are not integers.
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
    """`x` with the block at `starts` replaced by `update`.

    `out[start + i ..] = update[i..]`, and `x` elsewhere; `starts` are as for `dynamic_slice` and
    clamped in the same way, to [0, dim - update dim]. Both are of one element type, any. Refused:
    an `update` of another type or rank or larger than `x` on an axis, another number of starts than
    axes, starts that are not integers.
    """

    def infer(self, x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        """Return the type of `x`."""
        self.require_same_dtype(x, update)
        _require_starts(self, x, starts)
        if update.rank != x.rank or any(
            size > dim for size, dim in zip(update.shape, x.shape, strict=True)
        ):
            raise self.error("needs an update of the same rank, no larger on any axis", x, update)
        return x


@op("scatter_reduce")
class ScatterReduce(Op):
    """`x` with each of `updates` combined into the element that `indices` names along `axis`.

    For every position `p.., i, q..` of `updates`, with `j = indices[p.., i, q..]`:
    `out[p.., j, q..] = kind(out[p.., j, q..], updates[p.., i, q..])`, where `out` starts as `x`.
    Elements without an index are those of `x`.

    `indices`, of any integer type, and `updates`, of the element type of `x`, have one shape: the
    rank of `x`, any size along `axis`, no larger than `x` on the other axes. `replace` takes every
    element type, and of updates to one element the last in row-major order wins. add and mul take
    numbers: integers wrap; floats may be combined in any order, those of 8 and 16 bits in f32 from
    `x` on, rounded once at the end. max and min take reals; NaN propagates, and of zeros of both
    signs either may win.

    An index outside [0, x.shape[axis]), negative ones too, is an ExecutionError that says
    `index N`, the axis and its size, raised before anything is written. Refused: operands of rank
    0, an `axis` that they do not have, and shapes or element types that do not fit.
    """

    axis: int
    kind: Literal["add", "mul", "max", "min", "replace"]

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        """Return the type of `x`."""
        self.require_kind(indices, "signed", "unsigned")
        self.require_same_dtype(x, updates)
        if self.kind in ("max", "min"):
            self.require_kind(x, "signed", "unsigned", "float")
        elif self.kind in ("add", "mul"):
            self.require_kind(x, "signed", "unsigned", "float", "complex")
        if indices.shape != updates.shape:
            raise self.error("needs indices and updates of one shape", x, indices, updates)
        if x.rank != indices.rank or not 0 <= self.axis < x.rank:
            reason = f"needs operands of one rank that have axis {self.axis}"
            raise self.error(reason, x, indices, updates)
        for axis, (have, want) in enumerate(zip(x.shape, indices.shape, strict=True)):
            if axis != self.axis and want > have:
                reason = f"writes {want} of {have} on axis {axis}"
                raise self.error(reason, x, indices, updates)
        return x


@op("segment_reduce")
class SegmentReduce(Op):
    """Rows of `x` with the same id combined: `out[s, j..] = kind of x[i, j..], segment_ids[i] = s`.

    `segment_ids` is a vector of `x.shape[0]` integers of any integer type, in any order; the result
    has `num_segments` rows, at least 0. A segment that no row belongs to is the identity: 0 (sum),
    1 (prod), the least value or -inf (max), the greatest value or inf (min); f8e4m3, which has no
    infinities, has -448 and 448 there.

    sum and prod take numbers, max and min reals; NaN propagates, and of zeros of both signs either
    may be the result. Integers wrap in their own type. Floats may be combined in any order, those
    of 8 and 16 bits in f32, rounded once at the end.

    An id outside [0, num_segments), negative ones too, is an ExecutionError that says `index N`,
    axis 0 and its size, raised before anything is written. Refused: `x` of rank 0, ids of another
    shape or not of integers, a negative `num_segments`.
    """

    kind: Literal["sum", "prod", "max", "min"]
    num_segments: int

    def infer(self, x: TensorType, segment_ids: TensorType) -> TensorType:
        """Return `num_segments` rows like those of `x`."""
        self.require_kind(segment_ids, "signed", "unsigned")
        if self.kind in ("max", "min"):
            self.require_kind(x, "signed", "unsigned", "float")
        else:
            self.require_kind(x, "signed", "unsigned", "float", "complex")
        if x.rank == 0 or segment_ids.shape != x.shape[:1]:
            raise self.error("needs a vector with one id a row", x, segment_ids)
        if self.num_segments < 0:
            raise self.error(f"needs num_segments >= 0, got {self.num_segments}", x, segment_ids)
        return x.with_shape((self.num_segments, *x.shape[1:]))


def _require_starts(op: Op, x: TensorType, starts: TensorType) -> None:
    op.require_kind(starts, "signed", "unsigned")
    if starts.shape != (x.rank,):
        raise op.error(f"needs a vector of {x.rank} starts", x, starts)
