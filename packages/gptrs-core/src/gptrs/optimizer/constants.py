"""Splats, values with the same number in every element: recognized and emitted by rewrites."""

from __future__ import annotations

from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Reverse, Slice, Tile, Transpose
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.rewrite.pattern import Emitter, Match

MOVES = (BroadcastTo, Reshape, Transpose, Slice, Tile, Reverse)
"""Ops that only move or repeat elements of their operand."""

_MAX_MOVES = 8
"""How far back to look for a constant, so that long chains take linear time."""


def splat_value(match: Match, value: Value) -> Literal | None:
    """Return the element that `value` repeats, as a literal of rank 0, None if unknown.

    It is known if `value` is a constant with one element or only equal ones, possibly behind ops
    that move elements.
    """
    for _ in range(_MAX_MOVES):
        node = match.definition(value)
        if node is None:
            return None
        if isinstance(node.op, Constant):
            return _single(node.op.value)
        if not isinstance(node.op, MOVES):
            return None
        (value,) = node.operands
    return None


def is_splat(match: Match, value: Value, number: complex) -> bool:
    """Return whether every element of `value` is `number`, which its dtype must represent
    exactly."""
    return splat_value(match, value) == Literal.full(number, value.type.dtype)


def beside_splat(match: Match, number: complex) -> Value | None:
    """Return the operand of a binary op whose other operand is `number` everywhere; lhs is tried
    first."""
    lhs, rhs = match.operands
    if is_splat(match, rhs, number):
        return lhs
    return rhs if is_splat(match, lhs, number) else None


def emit_splat(emit: Emitter, element: Literal, type_: TensorType) -> Value:
    """Return a value of `type_` that holds `element`, a literal of rank 0, in every element."""
    constant = emit(Constant(element))
    return emit(BroadcastTo(type_.shape), constant) if type_.shape else constant


def _single(literal: Literal) -> Literal | None:
    size, data = literal.type.dtype.itemsize, literal.data
    # Compare the ends first, so that a large literal is read whole only if it may be a splat.
    if data[:size] != data[-size:] or literal.splat is None:
        return None
    return Literal(literal.type.with_shape(()), literal.splat)
