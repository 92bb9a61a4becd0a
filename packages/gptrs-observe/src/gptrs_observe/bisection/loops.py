"""Loops and branches of programs: their regions as programs, step by step, and parts of a scan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from gptrs.ir.builder import splice, with_operands
from gptrs.ir.ops.control_flow import Cond, Scan, While
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs_observe.bisection.sides import Side

Arrays = Sequence[np.ndarray]
Step = tuple[Program, list[np.ndarray]]
"""A region as a program, and its inputs."""

_LOOPS: Final = (Cond, Scan, While)


def the_loop(program: Program) -> Instruction | None:
    """Return the only instruction of `@main` if it is a loop or a branch."""
    instructions = program.main.body.instructions
    if len(instructions) != 1 or not isinstance(instructions[0].op, _LOOPS):
        return None
    return instructions[0]


def steps(program: Program, loop: Instruction, arrays: Arrays, side: Side) -> Iterator[Step]:
    """Yield what the only instruction of a program runs, one step after the other.

    The values that a step takes from the one before are those that `side` computes; SideError if it
    cannot.
    """
    known = dict(zip(program.main.body.params, arrays, strict=True))
    operands = [known[value] for value in loop.operands]
    regions = [_alone(program, region) for region in loop.regions]
    match loop.op:
        case Cond():
            yield regions[0 if operands[0] else 1], operands[1:]
        case While():
            condition, body = regions
            while True:
                yield condition, operands
                (again,) = side.run(condition, _named(operands))
                if not again:
                    return
                yield body, operands
                operands = side.run(body, _named(operands))
        case Scan() as op:
            (body,) = regions
            carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
            count = op.steps([value.type for value in loop.operands])
            for number in reversed(range(count)) if op.reverse else range(count):
                given = [*carried, *(each[number] for each in scanned)]
                yield body, given
                carried = side.run(body, _named(given))[: op.carry_count]
        case _:
            return


def _alone(whole: Program, region: Region) -> Program:
    params = tuple(Value(param.type, f"v{number}") for number, param in enumerate(region.params))
    kept: list[Instruction] = []
    results = splice(region, params, kept)
    return _with_main(whole, Region(params, tuple(kept), tuple(results)))


def _with_main(whole: Program, main: Region) -> Program:
    others = tuple(each for each in whole.functions if each.name != "main")
    program = Program((*others, Function("main", main)))
    return Program(program.reachable())


def _named(arrays: Arrays) -> dict[str, np.ndarray]:
    return {f"v{number}": array for number, array in enumerate(arrays)}


class ScanWindow:
    """Some instructions of the body of a scan, as a program with a scan of them alone.

    What the others compute is scanned: `reads` has the operands of the scan, then values of the
    body, whose arrays are the values of all steps, stacked. `gives` are the last carried values,
    then values of the body that others read, or with `everything` all that it defines.
    """

    def __init__(
        self,
        whole: Program,
        loop: Instruction,
        chosen: Collection[int],
        *,
        everything: bool = False,
    ) -> None:
        (body,), op = loop.regions, loop.op
        assert isinstance(op, Scan)
        inside = [body.instructions[index] for index in sorted(chosen)]
        within = set(map(id, inside))
        outside = {
            value for each in body.instructions if id(each) not in within for value in each.operands
        }
        outside.update(body.results)
        defined = dict.fromkeys(value for made in inside for value in made.results)
        stacked = [value for value in defined if everything or value in outside]
        carried = body.results[: op.carry_count]
        read = dict.fromkeys([*(v for made in inside for v in made.operands), *carried])
        known = {*defined, *body.params}
        recorded = [value for value in read if value not in known]
        self.reads: list[Value] = [*loop.operands, *recorded]
        self.gives: list[Value] = [*loop.results[: op.carry_count], *stacked]
        self.count = len(inside)
        region = _region((*body.params, *recorded), inside, (*carried, *stacked))
        length = op.steps([value.type for value in loop.operands])
        types = [value.type for value in loop.operands]
        types += [value.type.with_shape((length, *value.type.shape)) for value in recorded]
        params = tuple(Value(type_, f"v{number}") for number, type_ in enumerate(types))
        ends = [value.type for value in loop.results[: op.carry_count]]
        ends += [value.type.with_shape((length, *value.type.shape)) for value in stacked]
        results = tuple(map(Value, ends))
        made = Instruction(replace(op, length=length), params, results, (region,))
        self.program = _with_main(whole, Region(params, (made,), results))


def _region(
    params: Sequence[Value], instructions: Sequence[Instruction], results: Sequence[Value]
) -> Region:
    """Return a region with values of its own."""
    fresh: dict[Value, Value] = {value: Value(value.type) for value in params}
    inputs = tuple(fresh.values())
    kept: list[Instruction] = []
    for made in instructions:
        plain = with_operands(made, fresh)
        new = tuple(Value(value.type) for value in made.results)
        kept.append(Instruction(plain.op, plain.operands, new, plain.regions))
        fresh.update(zip(made.results, new, strict=True))
    return Region(inputs, tuple(kept), tuple(fresh[value] for value in results))


def recorded_values(
    program: Program, loop: Instruction, arrays: Arrays, side: Side
) -> Mapping[Value, np.ndarray]:
    """Return the arrays of all values that a `ScanWindow` may read or give; SideError as `side`."""
    everything = range(len(loop.regions[0].instructions))
    window = ScanWindow(program, loop, everything, everything=True)
    known = dict(zip(program.main.body.params, arrays, strict=True))
    given = [known[value] for value in loop.operands]
    made = side.run(window.program, _named(given))
    return {**known, **dict(zip(window.gives, made, strict=True))}
