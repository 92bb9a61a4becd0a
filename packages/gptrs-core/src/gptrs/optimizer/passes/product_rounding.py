"""Rounds the operands of products with a matrix to bf16: what the precision `bf16` means in PTIR.

Not part of the pipeline, as it changes results: a backend of that precision runs it in `legalize`,
or computes the same by kernels of its own.
"""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir import dtypes
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

dot_general = calls(DotGeneral)
x = Operand("x")
w = Operand("w")
_MATRIX = 2


@rewrite(dot_general(x, w))
def product_with_matrix(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, w) -> dot_general(cast(x, bf16), cast(w, bf16), out_dtype = f32)

    x and w are f32, w is a matrix, and there are no batch axes: linear layers and heads. What was
    bf16 before it was widened is taken as it was.
    """
    op, types = (
        m[dot_general],
        {m[x].type.dtype, m.type.dtype, m[dot_general].accumulator(m[x].type)},
    )
    if op.batch_lhs or m[w].type.rank != _MATRIX or len(op.contract_rhs) != 1:
        return Declined("its right side is not one matrix for all rows")
    if types != {dtypes.f32}:
        return Declined(f"it is a product of {m[x].type.dtype} that gives {m.type.dtype}")
    sides = [_rounded(m[side], m, emit) for side in (x, w)]
    return emit(replace(op, accum_dtype=dtypes.f32, out_dtype=dtypes.f32), *sides)


def _rounded(value: Value, m: Match, emit: Emitter) -> Value:
    node = m.definition(value)
    if node is not None and isinstance(node.op, Cast):
        (source,) = node.operands
        if source.type.dtype is dtypes.bf16:
            return source
    return emit(Cast(dtypes.bf16), value)


PRODUCT_ROUNDING = RewritePass("product-rounding", (product_with_matrix,))
