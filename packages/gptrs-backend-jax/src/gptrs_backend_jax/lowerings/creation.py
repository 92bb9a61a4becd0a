"""Lowerings of the ops that make a tensor from attributes alone."""

from __future__ import annotations

import numpy as np
from jax import Array

from gptrs.api.programs import dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import REALS, constant, held
from gptrs_backend_jax.lowering import TABLE, LoweringContext


@TABLE.register(ops.creation.Constant, dtypes=dtypes.ALL)
def literal(op: ops.creation.Constant, ctx: LoweringContext) -> Array:
    """Return the elements of the literal; one element repeated stays one element for XLA."""
    array = constant(op.value.array, ctx.result.dtype)
    if op.value.splat is None:
        return typed_lax.array(array)
    return typed_lax.full(array.shape, array.reshape(-1)[0], array.dtype)


@TABLE.register(ops.creation.Iota, dtypes=REALS)
def iota(op: ops.creation.Iota, ctx: LoweringContext) -> Array:
    """Return 0, 1, ... along the axis."""
    if op.dtype.bits >= 16 and not op.dtype.is_float:
        return typed_lax.iota(held(op.dtype), op.shape, op.axis)
    wide = typed_lax.iota(np.int64, op.shape, op.axis)
    return convert(wide, dtypes.si64, op.dtype)
