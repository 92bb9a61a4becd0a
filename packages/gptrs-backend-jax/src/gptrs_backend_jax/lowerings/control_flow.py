"""Lowerings of the ops that run regions and functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jax import Array

from gptrs.api import Op, TensorType, dtypes, ops
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext

control_flow = ops.control_flow
CustomCall = ops.custom_call.CustomCall


@TABLE.register(control_flow.Cond, dtypes=[dtypes.i1])
def cond(op: Op, ctx: LoweringContext, predicate: Array, *operands: Array) -> Arrays:
    """Run the first region if the predicate is true, else the second."""
    return ctx.walk.cond(predicate, ctx.instruction.regions, operands)


@TABLE.register(control_flow.While, dtypes=[dtypes.i1])
def while_(op: Op, ctx: LoweringContext, *state: Array) -> Arrays:
    """Run the body while the condition holds; return the first state for which it does not."""
    condition, body = ctx.instruction.regions
    return ctx.walk.loop(condition, body, state)


@TABLE.register(control_flow.Scan, dtypes=[dtypes.i1])
def scan(op: control_flow.Scan, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the body for each step; return the last carried values, then the stacked results."""
    carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
    (body,) = ctx.instruction.regions
    return ctx.walk.scan(body, carried, scanned, op.steps(ctx.operands), op.reverse)


@TABLE.register(control_flow.Call, dtypes=[dtypes.i1])
def call(op: control_flow.Call, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the function."""
    return ctx.walk.call(op.function, operands)


def _is_decomposed(op: Op, operands: Sequence[TensorType]) -> bool:
    return cast("CustomCall", op).decomposition is not None


@TABLE.register(CustomCall, dtypes=[dtypes.i1], when=_is_decomposed)
def custom_call(op: CustomCall, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the decomposition: this backend knows no target."""
    assert op.decomposition is not None, "the table asks for it"
    return ctx.walk.call(op.decomposition, operands)
