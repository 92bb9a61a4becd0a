"""Derivative rules of reductions, running totals, and the norm op."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.rules import Cotangents, Step, filled, rule, where, zeros
from gptrs.functionals.operands import converted, expand, splat
from gptrs.functionals.reduction import bounded_mean
from gptrs.ir import dtypes
from gptrs.ir.ops.normalization import LayerNorm
from gptrs.ir.ops.reduction import Cumulative, Reduce, reduced_shape


@rule(Reduce)
def _reduce(step: Step[Reduce], g: Tensor) -> Cotangents:
    (x,), (y,), op = step.operands, step.results, step.op

    def spread(value: Tensor) -> Tensor:
        """Expand a value per slice to one per element, in the type of `x`."""
        kept = p.reshape(converted(value, x.dtype), reduced_shape(x.shape, op.axes, True))
        return expand(kept, x.shape)

    if op.kind == "sum":
        return [spread(g)]
    if op.kind == "prod":
        return [p.mul(spread(g), _others(x, op.axes))]
    # Equal elements share the cotangent equally. A NaN equals nothing, so that 0 / 0 makes its
    # slice NaN.
    if y.dtype is not x.dtype:  # rounded, so that no element may equal it
        y = p.reduce(x, op.kind, op.axes)
    hit = p.compare(x, spread(y), "eq")
    count = p.reduce(p.cast(hit, x.dtype.accumulator), "sum", op.axes)
    return [p.div(where(hit, spread(g)), spread(count))]


def _others(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return for each element the product of the others in its slice, without division, so zeros
    are safe."""
    free = [axis for axis in range(x.rank) if axis not in axes]
    order = [*free, *axes]
    apart = p.transpose(x, order)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    flat = p.reshape(apart, (*(x.shape[axis] for axis in free), count))
    last = flat.rank - 1
    before = p.cumulative(flat, "prod", last, exclusive=True)
    after = p.cumulative(flat, "prod", last, exclusive=True, reverse=True)
    back = sorted(range(x.rank), key=order.__getitem__)
    return p.transpose(p.reshape(p.mul(before, after), apart.shape), back)


@rule(Cumulative)
def _cumulative(step: Step[Cumulative], g: Tensor) -> Cotangents:
    (x,), op = step.operands, step.op
    g = converted(g, x.dtype)
    if op.kind == "sum":
        return [p.cumulative(g, "sum", op.axis, not op.reverse, op.exclusive)]
    if op.kind == "prod":
        before = p.cumulative(x, "prod", op.axis, op.reverse, exclusive=True)
        return [p.mul(before, _later_products(op, x, g))]
    return [_to_records(op, x, g)]


def _later_products(op: Cumulative, x: Tensor, g: Tensor) -> Tensor:
    """Return at each j the sum over later i of `g[i]` times the product of x from j to i.

    The product excludes j, and i if the op is exclusive. A recurrence over the axis is exact for
    elements of 0, unlike quotients of products.
    """
    order = [op.axis, *(axis for axis in range(x.rank) if axis != op.axis)]
    back = sorted(range(x.rank), key=order.__getitem__)

    def body(later: Tensor, part: Tensor, factor: Tensor) -> list[Tensor]:
        if op.exclusive:
            return [p.add(part, p.mul(factor, later)), later]
        own = p.add(part, later)
        return [p.mul(factor, own), own]

    lines, parts = p.transpose(x, order), p.transpose(g, order)
    start = splat(0, x.dtype, lines.shape[1:])
    _, (found,) = p.scan(body, [start], [parts, lines], reverse=not op.reverse)
    return p.transpose(found, back)


def _to_records(op: Cumulative, x: Tensor, g: Tensor) -> Tensor:
    """Return the cotangents summed at the elements that were the running extreme: the latest of
    equals."""
    axis = op.axis
    if op.exclusive:  # exclusive: result i is the running extreme of its neighbour
        low, high = [0] * x.rank, [0] * x.rank
        low[axis], high[axis] = (1, -1) if op.reverse else (-1, 1)
        g = p.pad(g, low, high)
    best = p.cumulative(x, "max" if op.kind == "max" else "min", axis, op.reverse)
    # A NaN equals nothing, not even the running NaN that it caused.
    record = p.bit_or(p.compare(x, best, "eq"), p.compare(x, x, "ne"))
    number = p.iota(x.shape, axis, dtypes.si64)
    # The first element is always a record, so every result has one.
    # Larger than any index, as the running minimum is taken from the other end.
    other = filled(2**62, number) if op.reverse else zeros(number)
    kind = "min" if op.reverse else "max"
    latest = p.cumulative(p.select(record, number, other), kind, axis, op.reverse)
    return p.scatter_reduce(zeros(x), latest, g, axis, "add")


@rule(LayerNorm)
def _layer_norm(step: Step[LayerNorm], g: Tensor) -> Cotangents:
    x, scale, _ = step.operands
    axis = step.op.axis
    shape = [1] * x.rank
    shape[axis] = x.shape[axis]
    weight = p.reshape(converted(scale, x.dtype.accumulator), shape)
    by_x, normal, wide = normalized_backward(x, weight, g, (axis,), step.op.epsilon, True)
    others = [each for each in range(x.rank) if each != axis]
    return [
        by_x,
        converted(p.reduce(p.mul(wide, normal), "sum", others), scale.dtype),
        converted(p.reduce(wide, "sum", others), scale.dtype),
    ]


def normalized_backward(
    x: Tensor,
    weight: Tensor | None,
    g: Tensor,
    axes: Sequence[int],
    epsilon: float,
    centers: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangent of `x` in `normal(x) * weight`, then `normal(x)` and `g`, both widened.

    `normal(x)` is `(x - mean) / sqrt(var + epsilon)`, without `centers` `x / sqrt(mean(x^2) +
    epsilon)`. Statistics are recomputed, which costs less than keeping them; everything is computed
    in the accumulation type of `x`.
    """
    wide, g = converted(x, x.dtype.accumulator), converted(g, x.dtype.accumulator)

    def mean(value: Tensor) -> Tensor:
        return expand(_mean(value, axes), x.shape)

    apart = wide
    if centers:
        apart = p.sub(wide, mean(wide))
        apart = p.sub(apart, mean(apart))  # the rounding error of the first mean
    square = _mean(p.mul(apart, apart), axes)
    inverse = p.rsqrt(p.add(square, filled(epsilon, square)))
    inverse = expand(inverse, x.shape)
    normal = p.mul(apart, inverse)
    scaled = g if weight is None else p.mul(g, expand(weight, x.shape))
    # The mean of scaled * normal is what the divisor contributes, the mean of scaled what the
    # subtracted mean does.
    rest = p.mul(normal, mean(p.mul(scaled, normal)))
    if centers:
        rest = p.add(rest, mean(scaled))
    return converted(p.mul(inverse, p.sub(scaled, rest)), x.dtype), normal, g


def _mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the mean over axes, which are kept; symbolic sizes are counted when the program
    runs."""
    if all(type(x.shape[axis]) is int for axis in axes):
        return bounded_mean(x, axes)
    summed = p.reduce(x, "sum", axes, keepdims=True)
    return p.div(summed, p.reduce(filled(1, x), "sum", axes, keepdims=True))
