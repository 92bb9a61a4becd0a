"""Removes decided branches, and values that loops carry needlessly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from gptrs.ir.builder import splice, with_operands
from gptrs.ir.ops.control_flow import Cond, Scan, While
from gptrs.ir.ops.creation import Constant
from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.evaluation import Definitions
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.passes.cleanup import without_dead_code


def with_simple_regions(region: Region) -> Region:
    """Apply `cond(true, x) -> then(x)`, and drop unused operands and results of control flow.

    - A `cond` whose predicate is a constant is replaced by its branch.
    - An unused result of `cond` or stack of `scan` is not computed.
    - An operand of `cond` that no branch reads is not passed.
    - A value carried by `while` or `scan` is dropped if nothing reads it after the loop and no
      other result needs it.

    Repeated until nothing changes, since a dropped value may have been the last use of an earlier
    result.
    """
    while (simpler := _simplified(region)) is not region:
        region = simpler
    return region


def _simplified(region: Region) -> Region:
    """Return the region after one walk over its instructions, the same object if nothing
    changed."""
    defined: Definitions = {}
    known: dict[Value, Value] = {}
    kept: list[Instruction] = []
    read = _read(region)
    for instruction in region.instructions:
        instruction = with_operands(instruction, known)
        branch = _decided(instruction, defined)
        if branch is not None:
            given = splice(branch, instruction.operands[1:], kept)
            known.update(zip(instruction.results, given, strict=True))
            continue
        simpler = _SIMPLER.get(type(instruction.op), _as_it_is)(instruction, read)
        kept.append(simpler)
        defined.update(dict.fromkeys(simpler.results, simpler))
    if len(kept) == len(region.instructions) and all(
        new is old for new, old in zip(kept, region.instructions, strict=True)
    ):
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


def _read(region: Region) -> set[Value]:
    """Return the values that an instruction or the return reads."""
    operands = (operand for made in region.instructions for operand in made.operands)
    return {*operands, *region.results}


def _decided(instruction: Instruction, defined: Definitions) -> Region | None:
    """Return the branch that a `cond` always takes, None if unknown."""
    if not isinstance(instruction.op, Cond):
        return None
    predicate = defined.get(instruction.operands[0])
    if predicate is None or not isinstance(predicate.op, Constant):
        return None
    return instruction.regions[0 if predicate.op.value.array.item() else 1]


def _as_it_is(instruction: Instruction, read: set[Value]) -> Instruction:
    return instruction


def _cond(instruction: Instruction, read: set[Value]) -> Instruction:
    results = _some([n for n, value in enumerate(instruction.results) if value in read])
    bodies = [_with_results(region, results) for region in instruction.regions]
    operands = [
        number
        for number in range(len(instruction.operands) - 1)
        if any(body.params[number] in _read(body) for body in bodies)
    ]
    if len(results) == len(instruction.results) and len(operands) == len(instruction.operands) - 1:
        return instruction
    return replace(
        instruction,
        operands=(instruction.operands[0], *_pick(instruction.operands[1:], operands)),
        results=_pick(instruction.results, results),
        regions=tuple(_with_params(body, operands) for body in bodies),
    )


def _while(instruction: Instruction, read: set[Value]) -> Instruction:
    condition, body = instruction.regions
    outside = {n for n, value in enumerate(instruction.results) if value in read}
    asked = _params_behind(condition, range(len(condition.results)))
    carried = _needed(body, outside | asked)
    if len(carried) == len(instruction.operands):
        return instruction
    return replace(
        instruction,
        operands=_pick(instruction.operands, carried),
        results=_pick(instruction.results, carried),
        regions=(
            _with_params(_with_results(condition, [0]), carried),
            _with_params(_with_results(body, carried), carried),
        ),
    )


def _scan(instruction: Instruction, read: set[Value]) -> Instruction:
    op, (body,) = instruction.op, instruction.regions
    assert isinstance(op, Scan)
    count = op.carry_count
    outside = {n for n, value in enumerate(instruction.results) if value in read}
    stacked = [n for n in range(count, len(body.results)) if n in outside]
    asked = _params_behind(body, stacked) | outside
    carried = _needed(body, {n for n in asked if n < count}, count)
    results = _some([*carried, *stacked])
    if len(results) == len(instruction.results):
        return instruction
    if results[0] < count and not carried:  # nothing is read: the loop is removed as dead code
        return instruction
    scanned = list(range(count, len(instruction.operands)))
    return replace(
        instruction,
        op=replace(op, carry_count=len(carried)),
        operands=_pick(instruction.operands, [*carried, *scanned]),
        results=_pick(instruction.results, results),
        regions=(_with_params(_with_results(body, results), [*carried, *scanned]),),
    )


_SIMPLER: dict[type, Callable[[Instruction, set[Value]], Instruction]] = {
    Cond: _cond,
    While: _while,
    Scan: _scan,
}


def _some(numbers: list[int]) -> list[int]:
    """Return `numbers`, or the first result if empty: an instruction must have at least one."""
    return numbers or [0]


def _needed(body: Region, wanted: set[int], count: int | None = None) -> list[int]:
    """Return which of the first `count` carried values the `wanted` ones need, including
    themselves."""
    limit = len(body.results) if count is None else count
    needed, new = set(wanted), set(wanted)
    while new:
        new = {n for n in _params_behind(body, sorted(new)) if n < limit} - needed
        needed |= new
    return _some(sorted(needed)) if count is None else sorted(needed)


def _params_behind(body: Region, results: Sequence[int]) -> set[int]:
    """Return the indices of the parameters of `body` that these results depend on."""
    live = {body.results[number] for number in results}
    for made in reversed(body.instructions):
        if not live.isdisjoint(made.results):
            live.update(made.operands)
    return {number for number, param in enumerate(body.params) if param in live}


def _pick(values: Sequence[Value], numbers: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[number] for number in numbers)


def _with_results(region: Region, numbers: Sequence[int]) -> Region:
    """Return `region` with only these results, without what only the others need."""
    results = _pick(region.results, numbers)
    return without_dead_code(Region(region.params, region.instructions, results))


def _with_params(region: Region, numbers: Sequence[int]) -> Region:
    return Region(_pick(region.params, numbers), region.instructions, region.results)


REGION_SIMPLIFICATION = RegionPass("region-simplification", with_simple_regions)
