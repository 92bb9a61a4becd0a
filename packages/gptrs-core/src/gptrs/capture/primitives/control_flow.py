"""Primitives that run Python functions as branches, loops and calls of the program.

Each function is called once, with placeholders. Tensors that it closes over become more operands:
a branch may read them, a loop carries them unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.region import Body, as_function, capture_body, outside_of
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.ir.attributes import FunctionName
from gptrs.ir.ops import control_flow


def cond(predicate: Tensor, then: Body, otherwise: Body, *operands: Tensor) -> tuple[Tensor, ...]:
    """Return `then(*operands)` if the scalar `predicate` is true, else `otherwise(*operands)`."""
    types = [operand.type for operand in operands]
    bodies = [capture_body("then", then, types), capture_body("else", otherwise, types)]
    outside = outside_of(bodies)
    regions = [captured.region(outside) for captured in bodies]
    inputs = (predicate, *operands, *map(Tensor, outside))
    functions = [function for captured in bodies for function in captured.functions]
    return apply_many(control_flow.Cond(), *inputs, regions=regions, functions=functions)


def while_(condition: Body, body: Body, *state: Tensor) -> tuple[Tensor, ...]:
    """Apply `body` to the state while `condition` holds for it; return the last state."""
    types = [value.type for value in state]
    test = capture_body("condition", condition, types)
    step = capture_body("body", body, types)
    outside = outside_of([test, step])
    regions = [test.region(outside), step.region(outside, returned=outside)]
    results = apply_many(
        control_flow.While(),
        *state,
        *map(Tensor, outside),
        regions=regions,
        functions=[*test.functions, *step.functions],
    )
    return results[: len(state)]


def scan(
    body: Body,
    carried: Sequence[Tensor],
    scanned: Sequence[Tensor],
    length: int | None = None,
    reverse: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the last carried values, and the other results of `body` stacked on a leading axis."""
    steps = [x.type.with_shape(x.shape[1:]) for x in scanned]
    captured = capture_body("body", body, [*(x.type for x in carried), *steps])
    count = len(carried)
    region = captured.region(captured.outside, after=count, returned=captured.outside)
    op = control_flow.Scan(count + len(captured.outside), length, reverse)
    inputs = (*carried, *map(Tensor, captured.outside), *scanned)
    results = apply_many(op, *inputs, regions=[region], functions=captured.functions)
    return results[:count], results[op.carry_count :]


def call(function: Body, *operands: Tensor, name: str = "function") -> tuple[Tensor, ...]:
    """Call `function` as a function of the program, which is kept as one."""
    captured = capture_body(name, function, [operand.type for operand in operands])
    made = as_function(captured)
    inputs = (*operands, *map(Tensor, captured.outside))
    op = control_flow.Call(FunctionName(made.name))
    return apply_many(op, *inputs, functions=[*captured.functions, made])
