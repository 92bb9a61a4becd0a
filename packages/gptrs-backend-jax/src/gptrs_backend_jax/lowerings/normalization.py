"""Lowerings of the ops that shift and scale elements by the statistics of their axis."""

from __future__ import annotations

import math

import numpy as np
from jax import Array, lax

from gptrs.api.programs import dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.element_types import narrow, widen
from gptrs_backend_jax.lowering import TABLE, LoweringContext

LayerNorm = ops.normalization.LayerNorm


@TABLE.register(LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(op: LayerNorm, ctx: LoweringContext, x: Array, scale: Array, bias: Array) -> Array:
    """Take out the mean twice, then scale."""
    dtype = ctx.result.dtype
    if not x.size:
        return x
    wide, scale, bias = (widen(dtype, array) for array in (x, scale, bias))
    share, exponent = math.frexp(wide.shape[op.axis])
    power = np.array(math.ldexp(1.0, -exponent), wide.dtype)  # so that no sum overflows
    count = np.array(share, wide.dtype)
    others = [axis for axis in range(wide.ndim) if axis != op.axis]

    def mean(values: Array) -> Array:
        total = typed_lax.reduce(values * power, np.zeros((), values.dtype), lax.add, (op.axis,))
        return typed_lax.broadcast_in(total / count, values.shape, others)

    def along(vector: Array) -> Array:
        return typed_lax.broadcast_in(vector, wide.shape, (op.axis,))

    centred = wide - mean(wide)
    centred = centred - mean(centred)
    variance = mean(centred * centred)
    normal = centred / lax.sqrt(variance + np.array(op.epsilon, wide.dtype))
    return narrow(dtype, normal * along(scale) + along(bias))
