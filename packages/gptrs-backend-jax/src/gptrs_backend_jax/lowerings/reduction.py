"""Lowerings of the ops that combine the elements along some axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.accumulation import from_accumulator, to_accumulator
from gptrs_backend_jax.element_types import (
    F8E4M3_GREATEST,
    NUMBERS,
    ORDERED,
    integer_limits,
    order_keys,
)
from gptrs_backend_jax.lowering import TABLE, LoweringContext

reduction = ops.reduction

COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def identity(kind: str, dtype: DType) -> complex:
    """Return the result of a reduction of `kind` over no elements."""
    if kind in ("sum", "or"):
        return 0
    if kind == "prod":
        return 1
    if dtype.is_bool:
        return kind in ("and", "min")
    if kind == "and":
        return integer_limits(dtype)[1] if dtype.kind == "unsigned" else -1
    if dtype.is_integer:
        return integer_limits(dtype)[0 if kind == "max" else 1]
    greatest = F8E4M3_GREATEST if dtype is dtypes.f8e4m3 else math.inf
    return -greatest if kind == "max" else greatest


def start(kind: str, dtype: DType, x: Array) -> np.ndarray:
    """Return the identity as a scalar of the type of `x`, in which elements of `dtype` are."""
    return np.array(identity(kind, dtype), x.dtype)


@TABLE.register(reduction.Reduce, dtypes=dtypes.ALL)
def reduce(op: reduction.Reduce, ctx: LoweringContext, x: Array) -> Array:
    """Combine the elements along the axes."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    if op.axes:
        wide = typed_lax.reduce(wide, start(op.kind, accum, wide), COMBINE[op.kind], op.axes)
    shaped = lax.reshape(wide, ctx.result.shape)
    return from_accumulator(shaped, accum, ctx.result.dtype)


@TABLE.register(reduction.Argmax, dtypes=ORDERED)
def argmax(op: reduction.Argmax, ctx: LoweringContext, x: Array) -> Array:
    """Return the position of the first NaN, else of the first of the largest."""
    keys, _ = order_keys(ctx.operands[0].dtype, x)
    return _position(jnp.argmax, op, keys)


@TABLE.register(reduction.Argmin, dtypes=ORDERED)
def argmin(op: reduction.Argmin, ctx: LoweringContext, x: Array) -> Array:
    """Return the position of the first NaN, else of the first of the least."""
    keys, is_nan = order_keys(ctx.operands[0].dtype, x)
    if is_nan is not None:
        keys = lax.select(is_nan, lax.full_like(keys, np.iinfo(keys.dtype).min), keys)
    return _position(jnp.argmin, op, keys)


def _position(
    find: Callable[..., Array], op: reduction.Argmax | reduction.Argmin, keys: Array
) -> Array:
    found = find(keys, axis=op.axis, keepdims=op.keepdims)
    return lax.convert_element_type(found, op.dtype.numpy)


CUMULATIVE: dict[str, Callable[..., Array]] = {
    "sum": lax.cumsum,
    "prod": lax.cumprod,
    "max": lax.cummax,
    "min": lax.cummin,
}


@TABLE.register(reduction.Cumulative, dtypes=NUMBERS)
def cumulative(op: reduction.Cumulative, ctx: LoweringContext, x: Array) -> Array:
    """Return the totals up to each element along the axis."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    if wide.size:
        if op.exclusive:
            shift = [(0, 0, 0)] * wide.ndim
            shift[op.axis] = (-1, 1, 0) if op.reverse else (1, -1, 0)
            wide = lax.pad(wide, start(op.kind, accum, wide), shift)
        wide = CUMULATIVE[op.kind](wide, axis=op.axis, reverse=op.reverse)
    return from_accumulator(wide, accum, ctx.result.dtype)
