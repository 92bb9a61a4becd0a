"""Forward mode: run a region with the derivative of each value along a direction. Reverse-mode
rules are linear in the cotangents, and their transposes are the forward-mode rules, so one table
serves both. Branches, loops and calls push values and derivatives through their regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gptrs.capture import primitives as p
from gptrs.capture.region import capture_body
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.composites import body_of, own_rule
from gptrs.differentiation.control_flow import varying_carries
from gptrs.differentiation.reverse import Linearized, no_derivative, taken
from gptrs.differentiation.rules import (
    Cotangents,
    Functions,
    Step,
    emit,
    run_region,
    varies_with,
    varying,
    zeros,
)
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Instruction, Region

Tangents = Cotangents
"""A derivative for each value; None means zero."""


class Pushed(NamedTuple):
    """Values, and their derivatives along the input direction."""

    results: Sequence[Tensor]
    tangents: Tangents


def push(
    region: Region, functions: Functions, inputs: Sequence[Tensor], tangents: Tangents
) -> Pushed:
    """Capture a region on tensors, and its derivative along their tangents.

    UsageError if an op has no derivative.
    """
    known = dict(zip(region.params, inputs, strict=True))
    given = zip(region.params, tangents, strict=True)
    moved = {param: tangent for param, tangent in given if tangent is not None}
    for instruction in region.instructions:
        operands = tuple([known[value] for value in instruction.operands])
        if not varies_with(instruction, set(moved)):
            results = emit(instruction, operands, functions)
            known.update(zip(instruction.results, results, strict=True))
            continue
        directions = [moved.get(value) for value in instruction.operands]
        wanted = tuple([each is not None for each in directions])
        step = Step[Any](instruction.op, operands, (), wanted, instruction.regions, functions)
        own = _PUSHES.get(type(instruction.op), _transposed)
        results, found = own(instruction, step, directions)
        known.update(zip(instruction.results, results, strict=True))
        pairs = zip(instruction.results, found, strict=True)
        moved.update({value: tangent for value, tangent in pairs if tangent is not None})
    return Pushed(
        [known[value] for value in region.results], [moved.get(value) for value in region.results]
    )


def _transposed(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    """Transpose the reverse rule: take the reverse derivative of the rule as a function of the
    cotangents."""
    step, rule = taken(instruction, step)
    floats = [at for at, result in enumerate(step.results) if result.dtype.is_float]
    if rule is None and floats:
        raise no_derivative(instruction)
    if rule is None or not floats:
        return Pushed(step.results, [None] * len(step.results))
    backward = rule.backward

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        given = dict(zip(floats, tensors, strict=True))
        found = backward(step, [given.get(at) for at in range(len(step.results))])
        pairs = zip(step.operands, found, strict=True)
        return [zeros(x) if each is None else each for x, each in pairs if x.dtype.is_float]

    results = [step.results[at] for at in floats]
    captured = capture_body(instruction.op.name, body, [each.type for each in results])
    outside = captured.outside
    linear = Linearized(
        captured.region(outside),
        {each.name: each for each in captured.functions},
        [*map(zeros, results), *map(Tensor, outside)],
        [*[True] * len(results), *[False] * len(outside)],
    )
    pairs = zip(step.operands, directions, strict=True)
    pulled = linear.pull([each for x, each in pairs if x.dtype.is_float])
    found = dict(zip(floats, pulled, strict=False))
    return Pushed(step.results, [found.get(at) for at in range(len(step.results))])


def _filled(values: Sequence[Tensor], tangents: Tangents, chosen: Sequence[int]) -> list[Tensor]:
    """Return the tangents at the chosen indices, zeros for None."""
    return [zeros(values[at]) if (found := tangents[at]) is None else found for at in chosen]


def _spread(tangents: Sequence[Tensor], chosen: Sequence[int], count: int) -> Tangents:
    """Return a list of `count` with tangents at the chosen indices: the inverse of `_filled`."""
    found = dict(zip(chosen, tangents, strict=True))
    return [found.get(at) for at in range(count)]


def _chosen(flags: Sequence[bool]) -> list[int]:
    return [at for at, flag in enumerate(flags) if flag]


def _through_cond(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    predicate, *operands = step.operands
    moving = _chosen(step.wanted[1:])
    flags = [varying(region, step.wanted[1:]) for region in step.regions]
    out = _chosen([one or other for one, other in zip(*flags, strict=True)])
    count = len(operands)

    def branch(region: Region) -> Callable[..., Sequence[Tensor]]:
        def body(*tensors: Tensor) -> Sequence[Tensor]:
            along = _spread(tensors[count:], moving, count)
            results, found = push(region, step.functions, tensors[:count], along)
            return [*results, *_filled(results, found, out)]

        return body

    given = _filled(operands, directions[1:], moving)
    then, otherwise = map(branch, step.regions)
    found = p.cond(predicate, then, otherwise, *operands, *given)
    own = len(instruction.results)
    return Pushed(found[:own], _spread(found[own:], out, own))


def _through_scan(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    op: Scan = step.op
    (region,), count, total = step.regions, op.carry_count, len(step.operands)
    varies = varying_carries(region, step.wanted, count)
    carried = _chosen(varies[:count])
    scanned = [at for at in range(count, total) if varies[at]]
    stacked = [at for at in _chosen(varying(region, varies)) if at >= count]

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        rest = iter(tensors)
        state = [next(rest) for _ in range(count)]
        along = [next(rest) for _ in carried]
        items = [next(rest) for _ in range(count, total)]
        tangents = _spread([*along, *rest], [*carried, *scanned], total)
        results, found = push(region, step.functions, [*state, *items], tangents)
        return [
            *results[:count],
            *_filled(results, found, carried),
            *results[count:],
            *_filled(results, found, stacked),
        ]

    last, rows = p.scan(
        body,
        [*step.operands[:count], *_filled(step.operands, directions, carried)],
        [*step.operands[count:], *_filled(step.operands, directions, scanned)],
        op.length,
        op.reverse,
    )
    own = len(instruction.results)
    tangents = [*last[count:], *rows[own - count :]]
    return Pushed(
        [*last[:count], *rows[: own - count]], _spread(tangents, [*carried, *stacked], own)
    )


def _through_while(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    condition, region = step.regions
    count = len(step.operands)
    moving = _chosen(varying_carries(region, step.wanted, count))

    def test(*tensors: Tensor) -> Sequence[Tensor]:
        return run_region(condition, step.functions, tensors[:count])

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        along = _spread(tensors[count:], moving, count)
        results, found = push(region, step.functions, tensors[:count], along)
        return [*results, *_filled(results, found, moving)]

    found = p.while_(test, body, *step.operands, *_filled(step.operands, directions, moving))
    return Pushed(found[:count], _spread(found[count:], moving, count))


def _through_call(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    body = step.functions[step.op.function].body
    return push(body, step.functions, step.operands, directions)


def _through_composite(instruction: Instruction, step: Step[Any], directions: Tangents) -> Pushed:
    """Use the rule of the functional; else run the composite as is, and push tangents through its
    decomposition."""
    rule = own_rule(step.op, step.operands)
    if rule is not None and rule.linear:
        return _transposed(instruction, step, directions)
    body = body_of(step.op, step.functions)
    found = push(body, step.functions, step.operands, directions)
    # The composite is kept whole for backends that claim it; the decomposition's own results are
    # dead code.
    return Pushed(emit(instruction, step.operands, step.functions), found.tangents)


_PUSHES: dict[type[Op], Callable[[Instruction, Step[Any], Tangents], Pushed]] = {
    Cond: _through_cond,
    Scan: _through_scan,
    While: _through_while,
    Call: _through_call,
    Composite: _through_composite,
}
