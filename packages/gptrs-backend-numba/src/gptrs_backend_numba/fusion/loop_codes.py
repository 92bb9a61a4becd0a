"""Weights of 8-bit codes inside loops: the loop reads the codes, not what they stand for.

The optimizer moves what no step changes in front of a loop, the widening of codes among it. A body
that gets floats, or integers of 32 bits, shows nothing of their codes, and multiplies four times
as many bytes.
"""

from __future__ import annotations

from msgspec.structs import replace

from gptrs.ir.builder import with_operands
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Cast, Mul, Sub
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Slice, Transpose
from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.passes.integer_products import find_widened
from gptrs.optimizer.rewrite.rewriter import Rewriter

_WIDENING = (Cast, Sub, Mul, Reshape, Transpose, Slice, BroadcastTo, Constant)
"""Ops that turn codes into numbers."""


def widen_in_loops(region: Region) -> Region:
    """`let w = f(codes) in scan(s, w) -> scan(s, codes)`, whose body computes `w = f(codes)`.

    For loops with products. A widening that no kernel takes in leaves the loop again when the
    program is cleaned up.
    """
    if not any(_has_products(made) for made in region.instructions):
        return region
    rewriter = Rewriter(region)
    kept: list[Instruction] = []
    known: dict[Value, Value] = {}
    for made in region.instructions:
        made = with_operands(made, known)
        cones = _cones(made, rewriter) if _has_products(made) else {}
        if cones:
            loop = _with_codes(made, cones)
            removed = {made.results[index]: made.operands[index] for index in cones}
            stay = [value for value in made.results if value not in removed]
            # The operands that were added are carried, in front of what is stacked.
            carried = len(stay) - _stacked(made)
            new = (*loop.results[:carried], *loop.results[len(loop.results) - _stacked(made) :])
            known |= removed | dict(zip(stay, new, strict=True))
            made = loop
        kept.append(made)
    if not known:
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


WIDEN_IN_LOOPS = RegionPass("numba-widen-in-loops", widen_in_loops)
"""Before products of integers are put together."""


def _has_products(made: Instruction) -> bool:
    return isinstance(made.op, Scan) and any(
        isinstance(inner.op, DotGeneral) for inner in made.regions[0].walk()
    )


def _stacked(made: Instruction) -> int:
    assert isinstance(made.op, Scan)
    return len(made.results) - made.op.carry_count


def _cones(made: Instruction, rewriter: Rewriter) -> dict[int, list[Instruction]]:
    """Return what computes each widened invariant of a loop of its codes, in order, by index."""
    assert isinstance(made.op, Scan)
    (body,) = made.regions
    found: dict[int, list[Instruction]] = {}
    for index, operand in enumerate(made.operands[: made.op.carry_count]):
        side = find_widened(operand, rewriter)
        if body.results[index] is body.params[index] and side and side.codes is not operand:
            cone: dict[Instruction, None] = {}
            _collect(operand, side.codes, rewriter, cone)
            found[index] = [*cone]
    return found


def _collect(value: Value, codes: Value, rewriter: Rewriter, cone: dict[Instruction, None]) -> None:
    """Add the instructions of the widening that `value` depends on, operands first."""
    node = rewriter.definition(value)
    if value is codes or node is None or not isinstance(node.op, _WIDENING):
        return
    for operand in node.operands:
        _collect(operand, codes, rewriter, cone)
    cone[node.freeze()] = None


def _with_codes(made: Instruction, cones: dict[int, list[Instruction]]) -> Instruction:
    """Return the loop with widened operands computed in its body; new operands come last."""
    op, (body,) = made.op, made.regions
    assert isinstance(op, Scan)
    count = op.carry_count
    inner: dict[Value, Value] = {}
    leaves: dict[Value, Value] = {}
    steps: list[Instruction] = []
    for index, cone in cones.items():
        for step in cone:
            for operand in step.operands:
                if operand not in inner:
                    inner[operand] = leaves[operand] = Value(operand.type)
            inner.update({value: Value(value.type) for value in step.results})
            results = tuple(inner[value] for value in step.results)
            operands = tuple(inner[value] for value in step.operands)
            steps.append(Instruction(step.op, operands, results))
        inner[body.params[index]] = inner[made.operands[index]]
    steps += [with_operands(step, inner) for step in body.instructions]
    stay = [index for index in range(count) if index not in cones]
    fresh = tuple(leaves.values())
    params = (*(body.params[i] for i in stay), *fresh, *body.params[count:])
    results = [inner.get(value, value) for value in body.results]
    new = Region(params, tuple(steps), (*(results[i] for i in stay), *fresh, *results[count:]))
    carried = [made.results[i] for i in stay]
    return Instruction(
        replace(op, carry_count=len(stay) + len(leaves)),
        (*(made.operands[i] for i in stay), *leaves, *made.operands[count:]),
        tuple(Value(v.type, v.name) for v in (*carried, *leaves, *made.results[count:])),
        (new,),
    )
