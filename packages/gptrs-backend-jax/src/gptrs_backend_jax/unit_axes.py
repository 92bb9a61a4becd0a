"""Instructions without axes of size 1: on CPUs XLA writes in place only where shapes are equal.

A product of XLA has its own axes alone; the shapes of PTIR have the heads of a group besides, which
is often 1. So a bitcast stood between the two, and the softmax of a prompt of GPT-2 124M took a
third longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax import Array, lax

from gptrs.api.programs import Instruction, Op, TensorType, ops
from gptrs_backend_jax.lowering import Arrays

BroadcastTo = ops.layout.BroadcastTo
Reduce = ops.reduction.Reduce
_ELEMENTWISE = tuple(
    each
    for each in vars(ops.elementwise).values()
    if isinstance(each, type) and issubclass(each, Op) and each is not Op
)


@dataclasses.dataclass(frozen=True)
class Squeezed:
    """An instruction of arrays without axes of size 1; `restored` brings those of results back."""

    op: Op
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    given: Arrays


def squeezed(instruction: Instruction, given: Arrays) -> Squeezed | None:
    """Return an instruction without axes of size 1, None if it has none or needs them."""
    op = instruction.op
    operands = tuple(value.type for value in instruction.operands)
    results = tuple(value.type for value in instruction.results)
    if isinstance(op, _ELEMENTWISE):
        shape = results[0].shape
        if 1 not in shape or any(each.shape != shape for each in (*operands, *results)):
            return None
        shapes = [_kept(shape)] * len(operands)
        return _made(op, operands, shapes, [_typed(each, shapes[0]) for each in results], given)
    if isinstance(op, BroadcastTo) and 1 in op.shape:
        source = (1,) * (len(op.shape) - operands[0].rank) + tuple(operands[0].shape)
        shape = tuple(dim for dim, of in zip(source, op.shape, strict=True) if of != 1)
        target = _kept(op.shape)
        changed = dataclasses.replace(op, shape=target)
        return _made(changed, operands, [shape], [_typed(results[0], target)], given)
    if isinstance(op, Reduce) and 1 in operands[0].shape:
        return _reduced(op, operands, results[0], given)
    return None


def restored(instruction: Instruction, arrays: Arrays) -> Arrays:
    """Return the results of a squeezed instruction in the shapes of the whole one."""
    return tuple(
        lax.reshape(x, value.type.shape)
        for x, value in zip(arrays, instruction.results, strict=True)
    )


def _reduced(
    op: Reduce, operands: tuple[TensorType, ...], result: TensorType, given: Arrays
) -> Squeezed:
    shape = operands[0].shape
    kept = [axis for axis, dim in enumerate(shape) if dim != 1]
    axes = tuple(kept.index(axis) for axis in op.axes if shape[axis] != 1)
    left = tuple(shape[axis] for axis in kept if axis not in op.axes)
    changed = dataclasses.replace(op, axes=axes, keepdims=False)
    return _made(changed, operands, [_kept(shape)], [_typed(result, left)], given)


def _made(
    op: Op,
    operands: Sequence[TensorType],
    shapes: Sequence[tuple[int, ...]],
    results: Sequence[TensorType],
    given: Sequence[Array],
) -> Squeezed:
    types = tuple(_typed(each, shape) for each, shape in zip(operands, shapes, strict=True))
    arrays = [lax.reshape(x, shape) for x, shape in zip(given, shapes, strict=True)]
    return Squeezed(op, types, tuple(results), arrays)


def _kept(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)


def _typed(like: TensorType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(like.dtype, shape)
