"""Parts of a region that depend only on constants or parameters, split off as programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gptrs.ir.ops.control_flow import While
from gptrs.ir.ops.creation import Constant, Iota
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.ops.random import Random
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.specialize import op_symbols

Evaluator = Callable[[Program], Sequence[np.ndarray]]
"""Runs a program without parameters. It raises GptrsError if the program fails."""

Definitions = dict[Value, Instruction]

CHEAP = (Constant, Iota, BroadcastTo)
"""Ops that cost almost nothing to recompute, while their values take memory."""


def definitions(region: Region) -> Definitions:
    """Map each value that `region` defines to its instruction."""
    return {value: made for made in region.instructions for value in made.results}


def known_instructions(region: Region, given: Iterable[Value]) -> dict[Instruction, bool]:
    """Return the instructions that read only `given` and each other, in order.

    The flag says whether it depends on one of `given`. Random ops are excluded, since a program
    must draw its numbers in each run; so are custom calls, composites, calls, ops with symbolic
    dims, and `while`, which may never end.
    """
    from_given = dict.fromkeys(given, True)
    known: dict[Instruction, bool] = {}
    for instruction in region.instructions:
        if not all(operand in from_given for operand in instruction.operands):
            continue
        if not _may_be_evaluated(instruction):
            continue
        depends = any(from_given[operand] for operand in instruction.operands)
        known[instruction] = depends
        from_given.update(dict.fromkeys(instruction.results, depends))
    return known


def _may_be_evaluated(instruction: Instruction) -> bool:
    inner = (made for region in instruction.regions for made in region.walk())
    return all(
        not isinstance(made.op, Random | CustomCall | While)
        and not made.op.callees()
        and all(value.type.is_static for value in made.results)
        and not op_symbols(made.op)
        for made in (instruction, *inner)
    )


def cut(values: Sequence[Value], params: Sequence[Value], defined: Definitions) -> Program:
    """Return the program from `params` to `values`, with only the instructions they need."""
    needed: dict[Instruction, None] = {}
    pending = [(value, False) for value in reversed(values)]
    while pending:
        value, operands_done = pending.pop()
        made = defined.get(value)
        if made is None or made in needed:
            continue
        if operands_done:
            needed[made] = None
            continue
        pending.append((value, True))
        pending.extend((operand, False) for operand in reversed(made.operands))
    body = Region(tuple(params), tuple(needed), tuple(values))
    return Program((Function("main", body),))
