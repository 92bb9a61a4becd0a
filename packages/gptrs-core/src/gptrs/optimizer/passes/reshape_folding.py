"""Reduces chains of reshapes to at most one, with its shape written out."""

from __future__ import annotations

from gptrs.ir.ops.layout import Reshape
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

reshape = calls(Reshape)
x = Operand("x")
s = Attribute[Shape]("s")


@rewrite(reshape(x))
def reshape_to_same_shape(m: Match, emit: Emitter) -> Value | Declined:
    """reshape(x, shape(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"the shape changes to {list(m.type.shape)}")
    return m[x]


@rewrite(reshape(reshape(x)))
def reshape_of_reshape(m: Match, emit: Emitter) -> Value:
    """reshape(reshape(x, r), s) -> reshape(x, s)"""
    return emit(Reshape(m.type.shape), m[x])


@rewrite(reshape(x, shape=s))
def reshape_to_inferred_shape(m: Match, emit: Emitter) -> Value | Declined:
    """reshape(x, s) -> reshape(x, s with -1 resolved)

    Equal reshapes then look equal.
    """
    if -1 not in m[s]:
        return Declined("the shape is written out")
    return emit(Reshape(m.type.shape), m[x])


RESHAPE_FOLDING = RewritePass(
    "reshape-folding", (reshape_to_same_shape, reshape_of_reshape, reshape_to_inferred_shape)
)
