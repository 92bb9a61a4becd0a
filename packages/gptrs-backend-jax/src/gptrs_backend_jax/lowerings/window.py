"""Lowerings of the ops that look at every position of a box that slides over a tensor."""

from __future__ import annotations

import itertools

from jax import Array, lax

from gptrs.api.programs import dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.accumulation import from_accumulator, to_accumulator
from gptrs_backend_jax.element_types import NUMBERS
from gptrs_backend_jax.lowering import TABLE, LoweringContext
from gptrs_backend_jax.lowerings.layout import padding_value
from gptrs_backend_jax.lowerings.reduction import COMBINE, start

window = ops.window


@TABLE.register(window.ReduceWindow, dtypes=NUMBERS)
def reduce_window(op: window.ReduceWindow, ctx: LoweringContext, x: Array) -> Array:
    """Combine the elements under each position of the window."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    initial = start(op.kind, accum, wide)
    if not ctx.result.size or not wide.size:
        total = typed_lax.full(ctx.result.shape, initial, wide.dtype)
    else:
        axes = op.axes()
        total = typed_lax.reduce_window(
            wide,
            initial,
            COMBINE[op.kind],
            [axis.size for axis in axes],
            strides=[axis.stride for axis in axes],
            padding=[(axis.low, axis.high) for axis in axes],
            dilation=[axis.dilation for axis in axes],
        )
    return from_accumulator(total, accum, ctx.result.dtype)


@TABLE.register(window.ExtractPatches, dtypes=dtypes.ALL)
def extract_patches(op: window.ExtractPatches, ctx: LoweringContext, x: Array) -> Array:
    """Put a strided slice for each position of the window side by side."""
    axes, positions = op.axes(), ctx.result.shape[1:-1]
    if not axes:
        return x
    value = padding_value(op.value, ctx.result.dtype, x)
    if not ctx.result.size:
        return typed_lax.zeros(ctx.result.shape, x.dtype)
    padded = lax.pad(x, value, [(0, 0, 0), *((a.low, a.high, 0) for a in axes), (0, 0, 0)])
    pieces: list[Array] = []
    for offsets in itertools.product(*(range(axis.size) for axis in axes)):
        starts = [offset * axis.dilation for offset, axis in zip(offsets, axes, strict=True)]
        ends = [
            first + (count - 1) * axis.stride + 1
            for first, count, axis in zip(starts, positions, axes, strict=True)
        ]
        strides = [axis.stride for axis in axes]
        pieces.append(
            lax.slice(padded, [0, *starts, 0], [x.shape[0], *ends, x.shape[-1]], [1, *strides, 1])
        )
    return lax.concatenate(pieces, x.ndim - 1)
