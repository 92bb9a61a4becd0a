"""Passes over whole programs: inlining, loop invariants, equal expressions and dead code."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.builder import splice, with_operands
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Call, Scan, While
from gptrs.ir.ops.custom_call import Claim, Composite, Declined, unclaimed
from gptrs.ir.ops.elementwise import Binary, Cast, Clamp, Compare, Div, Pow, Rem, Select, Unary
from gptrs.ir.ops.layout import Concat, Pad, Reshape, Reverse, Slice, Tile, Transpose
from gptrs.ir.ops.reduction import Cumulative, Reduce
from gptrs.ir.ops.window import ExtractPatches, ReduceWindow
from gptrs.ir.printer import print_region
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.evaluation import CHEAP
from gptrs.optimizer.pass_base import RegionPass, change_regions


def without_dead_code(region: Region) -> Region:
    """`let y = f(x) in z -> z` where z does not read y.

    Every op is pure, so only results matter; an instruction is kept whole while any of its results
    is read. An error that a removed instruction would have raised disappears with it. Parameters
    are kept.
    """
    live: set[Value] = set(region.results)
    kept: list[Instruction] = []
    for instruction in reversed(region.instructions):
        if not live.isdisjoint(instruction.results):
            live.update(instruction.operands)
            kept.append(instruction)
    if len(kept) == len(region.instructions):
        return region
    return Region(region.params, tuple(reversed(kept)), region.results)


DEAD_CODE = RegionPass("dead-code", without_dead_code)


# Computes repeated expressions of a region once.


Key = tuple[Op, tuple[Value, ...], tuple[str, ...]]
"""The key of equal computations: the op, its operands, and its regions as text."""


def with_common_subexpressions(region: Region) -> Region:
    """`let y = f(x), z = f(x) in g(y, z) -> let y = f(x) in g(y, y)`.

    Two instructions are equal if op, attributes, operands and regions are; literals compare by
    bits, operands of commutative ops in any order. Ops depend on nothing else (random numbers come
    from an operand), so the first instruction serves all.
    """
    first: dict[Key, Instruction] = {}
    known: dict[Value, Value] = {}
    kept: list[Instruction] = []
    numbers: dict[Value, int] = {}
    for instruction in region.instructions:
        instruction = with_operands(instruction, known)
        # Regions compare by identity, so their text stands for them.
        regions = tuple(print_region(region) for region in instruction.regions)
        key = (instruction.op, _in_order(instruction.op, instruction.operands, numbers), regions)
        earlier = first.get(key)
        if earlier is not None:
            known.update(zip(instruction.results, earlier.results, strict=True))
            continue
        first[key] = instruction
        kept.append(instruction)
    if len(kept) == len(region.instructions):
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


def _in_order(op: Op, operands: tuple[Value, ...], numbers: dict[Value, int]) -> tuple[Value, ...]:
    """Sort the operands of a commutative op by the order in which the region first read them."""
    if not op.commutative:
        return operands
    return tuple(sorted(operands, key=lambda value: numbers.setdefault(value, len(numbers))))


COMMON_SUBEXPRESSIONS = RegionPass("common-subexpressions", with_common_subexpressions)


# Hoists loop-invariant computations.


_WORTH: tuple[type[Op], ...] = (
    *(Unary, Binary, Cast, Clamp, Compare, Select),
    *(Transpose, Slice, Concat, Pad, Tile, Reverse),
    *(Reduce, Cumulative, DotGeneral),
)
"""Ops worth hoisting that cannot fail, so running them before a loop of zero steps is harmless."""


def without_loop_invariants(region: Region, sound: Collection[str] = ()) -> Region:
    """`while(s, c): (f(c) + s, c) -> let y = f(c) in while(s, c, y): (y + s, c, y)`.

    A carried value is invariant if the body returns it unchanged. Instructions of the body that
    read only invariants and constants, and cannot fail, are computed before the loop and carried as
    additional invariants; so are composites with `sound` decompositions.
    """
    kept: list[Instruction] = []
    known: dict[Value, Value] = {}
    changed = False
    for instruction in region.instructions:
        instruction = with_operands(instruction, known)
        hoisted = _hoisted(instruction, sound)
        if not hoisted:
            kept.append(instruction)
            continue
        changed = True
        loop = _hoist(instruction, hoisted, kept)
        kept.append(loop)
        count = carry_count(instruction)
        extra = len(loop.results) - len(instruction.results)
        own = loop.results[:count] + loop.results[count + extra :]
        known.update(zip(instruction.results, own, strict=True))
    if not changed:
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


def carry_count(instruction: Instruction) -> int:
    """Return how many values a loop carries, its first operands and results."""
    op = instruction.op
    return op.carry_count if isinstance(op, Scan) else len(instruction.operands)


def _hoisted(instruction: Instruction, sound: Collection[str]) -> dict[Instruction, None]:
    """Return the instructions to hoist out of a loop body, with the constants they need."""
    if not isinstance(instruction.op, While | Scan):
        return {}
    body = instruction.regions[-1]
    invariant = {body.params[at] for at in invariants(instruction)}
    movable: dict[Instruction, None] = {}
    worth = False
    for made in body.instructions:
        if not all(operand in invariant for operand in made.operands):
            continue
        moves = isinstance(made.op, _WORTH) and not _may_fail(made)
        moves |= isinstance(made.op, Composite) and made.op.decomposition in sound
        if moves or isinstance(made.op, CHEAP):
            movable[made] = None
            invariant.update(made.results)
            worth |= moves
    return movable if worth else {}


def invariants(loop: Instruction) -> list[int]:
    """Return the carried values that the body of a loop returns unchanged, by index."""
    body = loop.regions[-1]
    pairs = zip(body.params, body.results, strict=False)
    same = [param is result for param, result in pairs]
    return [at for at in range(carry_count(loop)) if same[at]]


def _may_fail(made: Instruction) -> bool:
    return isinstance(made.op, Div | Rem | Pow) and made.result.type.dtype.is_integer


def _hoist(
    instruction: Instruction, hoisted: dict[Instruction, None], into: list[Instruction]
) -> Instruction:
    """Return the loop without `hoisted`, which is appended to `into`.

    New carried values follow the old ones.
    """
    body, count = instruction.regions[-1], carry_count(instruction)
    rest = [made for made in body.instructions if made not in hoisted]
    # Constants are duplicated on both sides: they are free and need not be carried.
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
    op, count = instruction.op, carry_count(instruction)
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


class CompositeInvariants(Struct, frozen=True):
    """`while(s, c): (composite(c) + s, c)` -> the same with the composite in front of the loop.

    This must run before claims: once a backend has claimed a composite, its decomposition no longer
    shows that it cannot fail.
    """

    name: str = "composite-invariants"

    def apply(self, program: Program) -> Program:
        """Return `program` without such composites in its loops; itself if there are none."""
        sound: set[str] = set()
        for function in program.functions:  # callees first
            if all(_is_sound(made, sound) for made in function.body.walk()):
                sound.add(function.name)
        return change_regions(program, lambda region: without_loop_invariants(region, sound))


def _is_sound(made: Instruction, sound: Collection[str]) -> bool:
    """Return whether an instruction never fails, whatever its operands."""
    if isinstance(made.op, Composite | Call):
        return all(name in sound for name in made.op.callees())
    never = (*_WORTH, *CHEAP, Reshape, ExtractPatches, ReduceWindow)
    return isinstance(made.op, never) and not _may_fail(made)


COMPOSITE_INVARIANTS = CompositeInvariants()


# Inlines calls and composites, except composites that a backend claims.


class Inlining(Struct, frozen=True):
    """`call x {function = @f} -> f(x)`, and the same for `composite`s that `claim` leaves.

    Only `@main` remains, and with `share` the functions that it calls more than once. Without
    `calls`, only composites are inlined; functions remain, except decompositions that nothing else
    calls.
    """

    claim: Claim = unclaimed
    share: bool = False
    calls: bool = True
    name: str = "inlining"

    def apply(self, program: Program) -> Program:
        """Return `program` without calls; itself if there is nothing to change."""
        bodies: dict[str, Region] = {}
        kept = self._kept(program)
        for function in program.reachable() if self.calls else program.functions:
            within = kept if function.name == "main" or not self.calls else frozenset[str]()
            bodies[function.name] = _Inliner(self.claim, bodies, within).region(function.body)
        functions = [
            function
            if bodies[function.name] is function.body
            else Function(function.name, bodies[function.name])
            for function in program.functions
            if function.name in kept or function.name == "main"
        ]
        if len(functions) == len(program.functions) and all(
            map(operator.is_, functions, program.functions)
        ):
            return program
        return Program(tuple(functions))

    def _kept(self, program: Program) -> frozenset[str]:
        """Return the functions, besides `@main`, that remain."""
        if self.calls:
            return _called_often(program.main.body) if self.share else frozenset[str]()
        inlined: set[str] = set()
        called: set[str] = set()
        for function in program.functions:
            for made in function.body.walk():
                (inlined if isinstance(made.op, Composite) else called).update(made.op.callees())
        return frozenset(each.name for each in program.functions) - (inlined - called)


def _called_often(region: Region) -> frozenset[str]:
    """Return the functions that several instructions of `region` call."""
    calls = Counter(made.op.function for made in region.instructions if isinstance(made.op, Call))
    return frozenset(name for name, count in calls.items() if count > 1)


class _Inliner:
    """Rebuilds regions; `bodies` holds the callees, already inlined themselves.

    Calls of `kept` functions remain.
    """

    def __init__(
        self, claim: Claim, bodies: Mapping[str, Region], kept: Collection[str] = ()
    ) -> None:
        self._claim = claim
        self._bodies = bodies
        self._kept = kept

    def region(self, region: Region) -> Region:
        """Return `region` with its calls, at any depth, inlined; itself if there are none."""
        known: dict[Value, Value] = {}
        kept: list[Instruction] = []
        for instruction in region.instructions:
            plain = with_operands(self._with_regions(instruction), known)
            found = self._replacement(plain)
            if not isinstance(found, Region):
                kept.append(plain if found is None else replace(plain, op=found))
                continue
            results = splice(found, plain.operands, kept)
            known.update(zip(plain.results, results, strict=True))
        if len(kept) == len(region.instructions) and all(
            map(operator.is_, kept, region.instructions)
        ):
            return region
        return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))

    def _with_regions(self, instruction: Instruction) -> Instruction:
        regions = tuple(self.region(region) for region in instruction.regions)
        if any(new is not old for new, old in zip(regions, instruction.regions, strict=True)):
            return replace(instruction, regions=regions)
        return instruction

    def _replacement(self, instruction: Instruction) -> Op | Region | None:
        """Return the replacement of the instruction, None to keep it."""
        op = instruction.op
        if isinstance(op, Composite):
            return self._claimed(op, instruction) or self._bodies[op.decomposition]
        return self._callee(instruction)

    def _claimed(self, op: Composite, instruction: Instruction) -> Op | Region | None:
        operands = [value.type for value in instruction.operands]
        claimed = self._claim(op, operands, [value.type for value in instruction.results])
        return None if isinstance(claimed, Declined) else claimed

    def _callee(self, instruction: Instruction) -> Region | None:
        op = instruction.op
        if not isinstance(op, Call) or op.function in self._kept:
            return None
        return self._bodies[op.function]
