"""Liveness: after which instruction each value of a region is no longer needed, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gptrs.ir.ops.control_flow import Scan, While
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.symbolic_dim import evaluated

NO_SIZES: Mapping[int, int] = MappingProxyType({})
"""For programs without symbols."""


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


def program_peak_bytes(program: Program, sizes: Mapping[int, int] = NO_SIZES) -> int:
    """Return `peak_bytes` of `@main`, with all that it calls; `sizes` of its symbols, if any."""
    known = _Peaks(sizes)
    for function in program.functions:  # each after those that it refers to
        known.functions[function.name] = known.of(function.body)
    return known.functions[program.main.name]


class _Peaks:
    """Peaks for sizes of the symbols; those of functions that may be called."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self.functions: dict[str, int] = {}

    def of(self, region: Region) -> int:
        """Return the most bytes of values that are live at one time, with the parameters.

        Every value takes a dense buffer of its own from the instruction that defines it to its last
        use; parameters, which belong to the caller, are live all the time. While an instruction
        runs, its operands and results are both live. One with regions or callees, whose results are
        its own, needs their peak instead: without their parameters, which are the operands; a loop
        counts them as well, since from the second step on they are values of their own, and so are
        the results that a `scan` stacks.
        """
        params = set(region.params)
        live = most = self._bytes(region.params)
        for instruction, dying in zip(region.instructions, dying_values(region), strict=True):
            most = max(most, live + self._inner(instruction))
            live += self._bytes(instruction.results)
            most = max(most, live)
            live -= self._bytes(value for value in dying if value not in params)
        return most

    def _inner(self, instruction: Instruction) -> int:
        """Return the most that the regions and callees need besides what is live around them."""
        op = instruction.op
        if isinstance(op, Scan):
            (body,) = instruction.regions
            return self.of(body) + self._bytes(instruction.results[op.carry_count :])
        is_loop = isinstance(op, While)
        needs = [0]
        for region in instruction.regions:
            needs.append(self.of(region) - (0 if is_loop else self._bytes(region.params)))
        given = self._bytes(instruction.operands)
        called = (self.functions[name] for name in op.callees() if name in self.functions)
        return max(needs + [peak - given for peak in called])

    def _bytes(self, values: Iterable[Value]) -> int:
        return sum(evaluated(value.type.nbytes, self._sizes) for value in values)
