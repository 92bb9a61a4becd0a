"""Primitives that run Python functions as branches, loops and calls of the program.

Each function is called once, with stand-ins, to capture what it does. Tensors that it uses without
taking them as arguments are passed along: a branch may read them, a loop carries them unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.region import Body, as_function, outside_of, trace
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.ir.attributes import FunctionName
from gptrs.ir.ops import control_flow


def cond(predicate: Tensor, then: Body, otherwise: Body, *operands: Tensor) -> tuple[Tensor, ...]:
    """What then gives for the operands where predicate is true, else what otherwise gives."""
    types = [operand.type for operand in operands]
    traces = [trace("then", then, types), trace("else", otherwise, types)]
    outside = outside_of(traces)
    regions = [traced.region(outside) for traced in traces]
    inputs = (predicate, *operands, *map(Tensor, outside))
    functions = [function for traced in traces for function in traced.functions]
    return apply_many(control_flow.Cond(), *inputs, regions=regions, functions=functions)


def while_(condition: Body, body: Body, *state: Tensor) -> tuple[Tensor, ...]:
    """The state after body was applied to it as long as condition holds for it."""
    types = [value.type for value in state]
    conditions, bodies = trace("condition", condition, types), trace("body", body, types)
    outside = outside_of([conditions, bodies])
    regions = [conditions.region(outside), bodies.region(outside, returned=outside)]
    results = apply_many(
        control_flow.While(),
        *state,
        *map(Tensor, outside),
        regions=regions,
        functions=[*conditions.functions, *bodies.functions],
    )
    return results[: len(state)]


def scan(
    body: Body,
    carried: Sequence[Tensor],
    scanned: Sequence[Tensor],
    length: int | None = None,
    reverse: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The last carried values, and the other results of body stacked over the leading axis."""
    steps = [x.type.with_shape(x.shape[1:]) for x in scanned]
    traced = trace("body", body, [*(x.type for x in carried), *steps])
    count = len(carried)
    region = traced.region(traced.outside, after=count, returned=traced.outside)
    op = control_flow.Scan(count + len(traced.outside), length, reverse)
    inputs = (*carried, *map(Tensor, traced.outside), *scanned)
    results = apply_many(op, *inputs, regions=[region], functions=traced.functions)
    return results[:count], results[op.carry_count :]


def call(function: Body, *operands: Tensor, name: str = "function") -> tuple[Tensor, ...]:
    """What function gives for the operands, kept as one function of the program."""
    traced = trace(name, function, [operand.type for operand in operands])
    made = as_function(traced)
    inputs = (*operands, *map(Tensor, traced.outside))
    op = control_flow.Call(FunctionName(made.name))
    return apply_many(op, *inputs, functions=[*traced.functions, made])
