"""Turns what moves or repeats nothing, since dims are 1, into reshapes.

What a program computes looks the same for every size until here: patterns are matched before.
"""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Reshape, Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.exact_ops import accepts
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.broadcast_folding import UNDECIDED, aligned
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

broadcast_to = calls(BroadcastTo)
transpose = calls(Transpose)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")


@rewrite(transpose(x, permutation=p))
def transpose_of_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(x, p) -> reshape(x, shape(x)[p]) where p keeps the order of all dims but 1s

    Elements stay where they are. A reshape costs nothing on a row-major buffer and folds with its
    neighbours, as in the heads of attention over a single token.
    """
    shape = m[x].type.shape
    moved = [axis for axis in m[p] if shape[axis] != 1]
    if moved != sorted(moved):
        return Declined(f"axes other than those of size 1 move by {list(m[p])}")
    if any(isinstance(user.op, Transpose) for user in m.users()):
        return Declined("its result is transposed again")  # and folds into that
    return _reshaped(m, emit)


@rewrite(broadcast_to(x))
def broadcast_to_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """broadcast_to(x, (1, .., *shape(x))) -> reshape(x, (1, .., *shape(x)))

    Nothing is repeated. Reshapes fold with their neighbours.
    """
    if m.type.shape != aligned(m[x].type.shape, m.type.rank):
        return Declined(f"elements of {list(m[x].type.shape)} are repeated")
    return _reshaped(m, emit)


def _reshaped(m: Match, emit: Emitter) -> Value | Declined:
    reshape = Reshape(m.type.shape)
    return emit(reshape, m[x]) if accepts(reshape, m[x].type) else UNDECIDED


UNIT_DIMS = RewritePass("unit-dims", (transpose_of_unit_dims, broadcast_to_unit_dims))
