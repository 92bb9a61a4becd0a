"""Derivative rules of ops that move elements."""

from __future__ import annotations

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.rules import Cotangents, Step, rule, summed_to
from gptrs.ir.ops import layout as la


@rule(la.Reshape)
def _reshape(step: Step[la.Reshape], g: Tensor) -> Cotangents:
    return [p.reshape(g, step.operands[0].shape)]


@rule(la.Transpose)
def _transpose(step: Step[la.Transpose], g: Tensor) -> Cotangents:
    order = step.op.permutation
    return [p.transpose(g, sorted(range(len(order)), key=order.__getitem__))]


@rule(la.BroadcastTo)
def _broadcast_to(step: Step[la.BroadcastTo], g: Tensor) -> Cotangents:
    return [summed_to(g, step.operands[0].shape)]


@rule(la.Slice)
def _slice(step: Step[la.Slice], g: Tensor) -> Cotangents:
    (x,), op = step.operands, step.op
    strides = op.steps(x.rank)
    ends = [
        start + (size - 1) * stride + 1 if stride != 1 and size else start + size
        for start, size, stride in zip(op.starts, op.sizes, strides, strict=True)
    ]
    high = [dim - end for dim, end in zip(x.shape, ends, strict=True)]
    return [p.pad(g, op.starts, high, [stride - 1 for stride in strides])]


@rule(la.Concat)
def _concat(step: Step[la.Concat], g: Tensor) -> Cotangents:
    parts: list[Tensor] = []
    start = 0
    for x, wanted in zip(step.operands, step.wanted, strict=True):
        starts = [0] * x.rank
        starts[step.op.axis] = start
        start += x.shape[step.op.axis]
        parts.append(p.slice(g, starts, x.shape) if wanted else g)
    return [part if wanted else None for part, wanted in zip(parts, step.wanted, strict=True)]


@rule(la.Pad)
def _pad(step: Step[la.Pad], g: Tensor) -> Cotangents:
    (x,), op = step.operands, step.op
    # Undo trimming before skipping interior values: trimmed positions may be elements or interior
    # values.
    whole = p.pad(g, [-low for low in op.low], [-high for high in op.high])
    strides = [between + 1 for between in op.between(x.rank)]
    return [p.slice(whole, [0] * x.rank, x.shape, strides)]


@rule(la.Tile)
def _tile(step: Step[la.Tile], g: Tensor) -> Cotangents:
    (x,), repeats = step.operands, step.op.repeats
    apart = [size for pair in zip(repeats, x.shape, strict=True) for size in pair]
    return [p.reduce(p.reshape(g, apart), "sum", range(0, 2 * x.rank, 2))]


@rule(la.Reverse)
def _reverse(step: Step[la.Reverse], g: Tensor) -> Cotangents:
    return [p.reverse(g, step.op.axes)]
