"""Lowerings of the ops that run regions and functions."""

from __future__ import annotations

from jax import Array

from gptrs.api.programs import Op, dtypes, ops
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext

control_flow = ops.control_flow


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


@TABLE.register(control_flow.Call, ops.custom_call.Composite, dtypes=[dtypes.i1])
def call(op: Op, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the function."""
    (function,) = op.callees()
    return ctx.walk.call(function, operands)
