"""Derivative rules of ops that read, write, and order elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.differentiation.rules import Cotangents, Step, filled, rule, rule_of_many, where, zeros
from gptrs.errors import UsageError
from gptrs.functionals.operands import expand, splat
from gptrs.ir import dtypes
from gptrs.ir.ops import indexing as i
from gptrs.ir.ops.sorting import Sort, TopK


@rule(i.Take)
def _take(step: Step[i.Take], g: Tensor) -> Cotangents:
    x, indices = step.operands
    rows = p.reshape(g, (indices.size, *x.shape[1:]))
    numbers = p.reshape(indices, (indices.size,))
    if type(x.shape[0]) is int:
        # Rows are added in the order of the indices, so that bits repeat; a parallel scatter of
        # floats would not.
        return [p.segment_reduce(rows, numbers, "sum", x.shape[0]), None]
    # `num_segments` must be a number, so for a symbolic count of rows, scatter into zeros instead.
    wide = p.reshape(numbers, (indices.size, *(1 for _ in x.shape[1:])))
    return [p.scatter_reduce(zeros(x), expand(wide, rows.shape), rows, 0, "add"), None]


@rule(i.Gather)
def _gather(step: Step[i.Gather], g: Tensor) -> Cotangents:
    x, indices = step.operands
    return [p.scatter_reduce(zeros(x), indices, g, step.op.axis, "add"), None]


@rule(i.DynamicSlice)
def _dynamic_slice(step: Step[i.DynamicSlice], g: Tensor) -> Cotangents:
    x, starts = step.operands
    return [p.dynamic_update_slice(zeros(x), g, starts), None]


@rule(i.DynamicUpdateSlice)
def _dynamic_update_slice(step: Step[i.DynamicUpdateSlice], g: Tensor) -> Cotangents:
    _, update, starts = step.operands
    # Starts outside are clamped the same way in both directions, as both ops are the forward's.
    kept = p.dynamic_update_slice(g, zeros(update), starts)
    return [kept, p.dynamic_slice(g, starts, update.shape), None]


@rule(i.ScatterReduce)
def _scatter_reduce(step: Step[i.ScatterReduce], g: Tensor) -> Cotangents:
    (x, indices, updates), op, axis = step.operands, step.op, step.op.axis
    if op.kind == "add":
        return [g, None, p.gather(g, indices, axis)]
    if op.kind == "replace":
        kept = p.scatter_reduce(g, indices, zeros(updates), axis, "replace")
        return [kept, None, where(_last_writers(x, indices, axis), p.gather(g, indices, axis))]
    if op.kind == "mul":
        if step.wanted[2]:
            raise _no_products("scatter_reduce", "mul")
        # The product of the updates alone: dividing the result by x would be 0 / 0 where x is 0.
        factors = p.scatter_reduce(filled(1, x), indices, updates, axis, "mul")
        return [p.mul(g, factors), None, None]
    (y,) = step.results
    hit = p.compare(x, y, "eq")
    hits = p.compare(updates, p.gather(y, indices, axis), "eq")
    one = p.cast(hit, x.dtype)
    count = p.scatter_reduce(one, indices, p.cast(hits, x.dtype), axis, "add")
    share = p.div(g, count)
    return [where(hit, share), None, where(hits, p.gather(share, indices, axis))]


def _last_writers(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return which updates were the last, in row-major order, to write their element."""
    flat = p.iota((indices.size,), 0, dtypes.si64)
    number = p.reshape(flat, indices.shape)
    nobody = splat(-1, dtypes.si64, x.shape)
    winner = p.scatter_reduce(nobody, indices, number, axis, "replace")
    return p.compare(p.gather(winner, indices, axis), number, "eq")


@rule(i.SegmentReduce)
def _segment_reduce(step: Step[i.SegmentReduce], g: Tensor) -> Cotangents:
    (x, ids), (y,), op = step.operands, step.results, step.op
    if op.kind == "sum":
        return [p.take(g, ids), None]
    if op.kind == "prod":
        raise _no_products("segment_reduce", "prod")
    hit = p.compare(x, p.take(y, ids), "eq")
    count = p.segment_reduce(p.cast(hit, x.dtype), ids, "sum", op.num_segments)
    count = p.maximum(count, filled(1, count))  # also where segments have no rows
    return [where(hit, p.take(p.div(g, count), ids)), None]


def _no_products(name: str, kind: str) -> UsageError:
    return UsageError(
        f"`{name}` of kind {kind} has no derivative by its factors",
        hint="for positive factors take `exp` of the sum of their `log`, or `stop_gradient`",
    )


# Sorting: indices are sorted along to get the permutation.


def _sorted_with_numbers(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    op: Sort = step.op
    number = p.iota(step.operands[0].shape, op.axis, dtypes.si64)
    *results, order = apply_many(op, *step.operands, number)
    return results, order


@rule_of_many(Sort, forward=_sorted_with_numbers)
def _sort(step: Step[Sort], cotangents: Cotangents) -> Cotangents:
    return [
        None if g is None else p.scatter_reduce(zeros(x), step.kept, g, step.op.axis, "add")
        for x, g in zip(step.operands, cotangents, strict=True)
    ]


@rule_of_many(TopK)
def _top_k(step: Step[TopK], cotangents: Cotangents) -> Cotangents:
    (x,), (_, indices), (g, _) = step.operands, step.results, cotangents
    assert g is not None
    return [p.scatter_reduce(zeros(x), indices, g, step.op.axis, "add")]
