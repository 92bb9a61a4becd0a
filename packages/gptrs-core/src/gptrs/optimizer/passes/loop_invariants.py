"""Takes out of loops what is the same in every step."""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir.copying import splice, with_operands
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Scan, While
from gptrs.ir.ops.elementwise import Binary, Cast, Clamp, Compare, Div, Pow, Rem, Select, Unary
from gptrs.ir.ops.layout import Concat, Pad, Reverse, Slice, Tile, Transpose
from gptrs.ir.ops.reduction import Cumulative, Reduce
from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.evaluation import CHEAP
from gptrs.optimizer.pass_base import RegionPass

_WORTH: tuple[type[Op], ...] = (
    *(Unary, Binary, Cast, Clamp, Compare, Select),
    *(Transpose, Slice, Concat, Pad, Tile, Reverse),
    *(Reduce, Cumulative, DotGeneral),
)
"""Ops that cost something and cannot fail, so that a loop of no steps may as well have run them."""


def without_loop_invariants(region: Region) -> Region:
    """`while(s, c): (f(c) + s, c) -> let y = f(c) in while(s, c, y): (y + s, c, y)`.

    A carried value is invariant where the body hands it on as it came. What the body computes of
    such values and of constants alone, by ops that cannot fail, is computed in front of the loop
    and carried as one more invariant.
    """
    kept: list[Instruction] = []
    known: dict[Value, Value] = {}
    changed = False
    for instruction in region.instructions:
        instruction = with_operands(instruction, known)
        hoisted = _hoisted(instruction)
        if not hoisted:
            kept.append(instruction)
            continue
        changed = True
        loop = _hoist(instruction, hoisted, kept)
        kept.append(loop)
        count = _carry_count(instruction)
        extra = len(loop.results) - len(instruction.results)
        own = loop.results[:count] + loop.results[count + extra :]
        known.update(zip(instruction.results, own, strict=True))
    if not changed:
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


def _carry_count(instruction: Instruction) -> int:
    op = instruction.op
    return op.carry_count if isinstance(op, Scan) else len(instruction.operands)


def _hoisted(instruction: Instruction) -> dict[Instruction, None]:
    """Return the instructions to take out of a loop body, with the constants that they need."""
    if not isinstance(instruction.op, While | Scan):
        return {}
    body = instruction.regions[-1]
    invariant = set(_invariant_params(instruction))
    movable: dict[Instruction, None] = {}
    worth = False
    for made in body.instructions:
        if not all(operand in invariant for operand in made.operands):
            continue
        moves = isinstance(made.op, _WORTH) and not _may_fail(made)
        if moves or isinstance(made.op, CHEAP):
            movable[made] = None
            invariant.update(made.results)
            worth |= moves
    return movable if worth else {}


def _invariant_params(instruction: Instruction) -> list[Value]:
    body = instruction.regions[-1]
    pairs = zip(body.params, body.results, strict=False)
    return [param for param, result in list(pairs)[: _carry_count(instruction)] if param is result]


def _may_fail(made: Instruction) -> bool:
    return isinstance(made.op, Div | Rem | Pow) and made.result.type.dtype.is_integer


def _hoist(
    instruction: Instruction, hoisted: dict[Instruction, None], into: list[Instruction]
) -> Instruction:
    """Return the loop without `hoisted`, which goes to `into`.

    New carried values follow the old ones.
    """
    body, count = instruction.regions[-1], _carry_count(instruction)
    rest = [made for made in body.instructions if made not in hoisted]
    # Constants are made anew on both sides, for they cost nothing and need not be carried.
    cheap = [made for made in hoisted if isinstance(made.op, CHEAP)]
    read = {operand for made in (*cheap, *rest) for operand in made.operands} | set(body.results)
    values = [v for made in hoisted if not isinstance(made.op, CHEAP) for v in made.results]
    values = [value for value in values if value in read]
    ahead = splice(
        Region(body.params[:count], tuple(hoisted), tuple(values)),
        instruction.operands[:count],
        into,
    )
    params = tuple(Value(value.type) for value in values)
    inner = dict(zip(values, params, strict=True))
    made_here = tuple(with_operands(made, inner) for made in (*cheap, *rest))
    results = tuple(inner.get(value, value) for value in body.results)
    new_body = Region(
        (*body.params[:count], *params, *body.params[count:]),
        made_here,
        (*results[:count], *params, *results[count:]),
    )
    return _with_body(instruction, new_body, ahead, params)


def _with_body(
    instruction: Instruction, body: Region, ahead: list[Value], params: tuple[Value, ...]
) -> Instruction:
    op, count = instruction.op, _carry_count(instruction)
    if isinstance(op, Scan):
        op = replace(op, carry_count=count + len(ahead))
    regions: tuple[Region, ...] = (body,)
    if isinstance(op, While):
        condition = instruction.regions[0]
        unread = tuple(Value(param.type) for param in params)
        new = Region((*condition.params, *unread), condition.instructions, condition.results)
        regions = (new, body)
    carried = tuple(Value(value.type) for value in ahead)
    new_results = tuple(Value(value.type, value.name) for value in instruction.results)
    return Instruction(
        op,
        (*instruction.operands[:count], *ahead, *instruction.operands[count:]),
        (*new_results[:count], *carried, *new_results[count:]),
        regions,
    )


LOOP_INVARIANTS = RegionPass("loop-invariants", without_loop_invariants)
