"""Lowerings of the ops that multiply and sum over shared axes of two tensors."""

from __future__ import annotations

from jax import Array

from gptrs.api import DType, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.accumulation import from_accumulator, to_accumulator
from gptrs_backend_jax.element_types import NUMBERS, computing
from gptrs_backend_jax.lowering import TABLE, LoweringContext

DotGeneral = ops.contraction.DotGeneral


@TABLE.register(DotGeneral, dtypes=NUMBERS)
def dot_general(op: DotGeneral, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Multiply with exact products, summed in the accumulate type."""
    dtype, accum = ctx.operands[0].dtype, op.accumulator(ctx.operands[0])
    if not _is_multiplied_as_it_is(dtype, accum):
        lhs, rhs = (to_accumulator(x, dtype, accum) for x in (lhs, rhs))
    total = typed_lax.dot_general(
        lhs,
        rhs,
        ((op.contract_lhs, op.contract_rhs), (op.batch_lhs, op.batch_rhs)),
        computing(accum),
    )
    return from_accumulator(total, accum, ctx.result.dtype)


def _is_multiplied_as_it_is(dtype: DType, accum: DType) -> bool:
    """Whether devices multiply the type itself and sum in `accum`: products of 16 bits are f32."""
    return dtype in (dtypes.bf16, dtypes.f16) and accum is dtypes.f32
