"""Derivative rules of matrix products and of dequantization."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.rules import Cotangents, Step, rule
from gptrs.functionals.operands import converted, expand
from gptrs.ir.ops import quantization as q
from gptrs.ir.ops.contraction import DotGeneral


@rule(DotGeneral)
def _dot_general(step: Step[DotGeneral], g: Tensor) -> Cotangents:
    (lhs, rhs), op = step.operands, step.op
    # Products of bf16 operands give f32, but their derivatives multiply bf16 again, so that the
    # kernels of the forward part serve.
    g = converted(g, lhs.dtype)
    batch = len(op.batch_lhs)
    middle = batch + len(op.free_lhs(lhs.type))
    own, other = range(batch, middle), range(middle, g.rank)
    left = _Side(lhs, op.batch_lhs, op.contract_lhs, op.free_lhs(lhs.type), own)
    right = _Side(rhs, op.batch_rhs, op.contract_rhs, op.free_rhs(rhs.type), other)
    return [
        _product(op, g, left, right) if step.wanted[0] else None,
        _product(op, g, right, left) if step.wanted[1] else None,
    ]


class _Side:
    """An operand of a product, its axes, and the result axes of its free axes."""

    def __init__(
        self,
        x: Tensor,
        batch: Sequence[int],
        contract: Sequence[int],
        free: Sequence[int],
        in_result: Sequence[int],
    ) -> None:
        self.x, self.batch, self.contract = x, list(batch), list(contract)
        self.free, self.in_result = list(free), list(in_result)


def _product(op: DotGeneral, g: Tensor, side: _Side, other: _Side) -> Tensor:
    """Return the cotangent of one side: `g` times the other side, contracted over the other's free
    axes.

    Uses the operand order whose result axes need no transpose, if there is one: transposes took a
    sixth of a GPT-2 training step.
    """
    contracted = [side.contract[other.contract.index(axis)] for axis in sorted(other.contract)]
    leading = list(range(len(side.batch)))
    g_axes, batches = (other.in_result, other.free), (leading, other.batch)
    accumulator = op.accum_dtype
    straight = [*side.batch, *side.free, *contracted]
    swapped = [*side.batch, *contracted, *side.free]
    order = list(range(side.x.rank))
    if straight != order and swapped == order:
        return p.dot_general(
            other.x, g, (g_axes[1], g_axes[0]), (batches[1], batches[0]), accumulator
        )
    found = p.dot_general(g, other.x, g_axes, batches, accumulator)
    return found if straight == order else p.transpose(found, [straight.index(a) for a in order])


# Codes have no derivative; scales and biases do.


@rule(q.Dequantize)
def _dequantize(step: Step[q.Dequantize], g: Tensor) -> Cotangents:
    codes, scale, zero_point = step.operands
    wide = converted(g, q.computing_dtype(scale.dtype, step.op.dtype))
    zeros = p.cast(_spread(step.op, codes, zero_point), wide.dtype)
    apart = p.sub(p.cast(codes, wide.dtype), zeros)
    return [None, _gathered(step.op, codes, scale, p.mul(wide, apart)), None]


@rule(q.DequantizeAffine)
def _dequantize_affine(step: Step[q.DequantizeAffine], g: Tensor) -> Cotangents:
    codes, scale, bias = step.operands
    wide = converted(g, q.computing_dtype(scale.dtype, bias.dtype, step.op.dtype))
    by_scale = p.mul(wide, p.cast(codes, wide.dtype))
    return [
        None,
        _gathered(step.op, codes, scale, by_scale),
        _gathered(step.op, codes, bias, wide),
    ]


def _groups(op: q.Quantization, x: Tensor) -> tuple[tuple[int, ...], list[int]]:
    """Return the shape of `x` with a separate axis for the elements of a group, and the axes to
    sum."""
    axis, size = op.axis, op.group_size
    if axis is None:
        return x.shape, list(range(x.rank))
    if size is None:
        return x.shape, [each for each in range(x.rank) if each != axis]
    count = op.parameter_shape(x.type)[axis]
    return (*x.shape[:axis], count, size, *x.shape[axis + 1 :]), [axis + 1]


def _gathered(op: q.Quantization, x: Tensor, parameter: Tensor, value: Tensor) -> Tensor:
    """Sum `value`, which has the shape of `x`, over the elements that share an entry of a
    parameter."""
    shape, axes = _groups(op, x)
    if not parameter.rank:
        shape, axes = x.shape, list(range(x.rank))
    return converted(p.reduce(p.reshape(value, shape), "sum", axes), parameter.dtype)


def _spread(op: q.Quantization, x: Tensor, parameter: Tensor) -> Tensor:
    """Expand a parameter to one value per element of `x`."""
    if not parameter.rank:
        return expand(parameter, x.shape)
    shape, axes = _groups(op, x)
    kept = [1 if axis in axes else dim for axis, dim in enumerate(shape)]
    return p.reshape(expand(p.reshape(parameter, kept), shape), x.shape)
