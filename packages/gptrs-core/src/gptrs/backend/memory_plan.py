"""Liveness: after which instruction each value of a region is no longer needed, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gptrs.ir.ops.control_flow import Scan, While
from gptrs.ir.program import Instruction, Program, Region, Value


def dying_values(region: Region) -> list[tuple[Value, ...]]:
    """Return for each instruction the values that it uses last; results of the region never die.

    A value that nothing reads dies at the instruction that defines it. Parameters that nothing
    reads are not listed.
    """
    last_use: dict[Value, int] = {}
    for position, instruction in enumerate(region.instructions):
        for value in (*instruction.operands, *instruction.results):
            last_use[value] = position
    for value in region.results:
        last_use.pop(value, None)
    dying: list[list[Value]] = [[] for _ in region.instructions]
    for value, position in last_use.items():
        dying[position].append(value)
    return [tuple(values) for values in dying]


def program_peak_bytes(program: Program) -> int:
    """`peak_bytes` of `@main`, with all that it calls."""
    peaks: dict[str, int] = {}
    for function in program.functions:  # each after those that it refers to
        peaks[function.name] = peak_bytes(function.body, peaks)
    return peaks[program.main.name]


def peak_bytes(region: Region, functions: Mapping[str, int] | None = None) -> int:
    """Most bytes of values of a region that are live at one time, its parameters included.

    Every value takes a dense buffer of its own from the instruction that defines it to its last
    use; parameters, which belong to the caller, are live all the time. While an instruction runs,
    its operands and results are both live. One with regions or callees, whose results are its own,
    needs their peak instead: without their parameters, which are the operands; a loop counts them
    as well, since from the second step on they are values of their own, and so are the results
    that a `scan` stacks. `functions` holds the peak of each function that may be called.
    """
    params = set(region.params)
    live = most = _bytes(region.params)
    for instruction, dying in zip(region.instructions, dying_values(region), strict=True):
        most = max(most, live + _inner_bytes(instruction, functions or {}))
        live += _bytes(instruction.results)
        most = max(most, live)
        live -= _bytes(value for value in dying if value not in params)
    return most


def _inner_bytes(instruction: Instruction, functions: Mapping[str, int]) -> int:
    """Return the most that the regions and callees need besides what is live around them."""
    op = instruction.op
    if isinstance(op, Scan):
        (body,) = instruction.regions
        return peak_bytes(body, functions) + _bytes(instruction.results[op.carry_count :])
    is_loop = isinstance(op, While)
    needs = [0]
    for region in instruction.regions:
        needs.append(peak_bytes(region, functions) - (0 if is_loop else _bytes(region.params)))
    given = _bytes(instruction.operands)
    needs += [functions[name] - given for name in op.callees() if name in functions]
    return max(needs)


def _bytes(values: Iterable[Value]) -> int:
    return sum(value.type.nbytes for value in values)
