"""The memory of a program: when each value dies, the peak, and an error if the peak is too high."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gptrs.backend.contract import InputRole
from gptrs.backend.process_limits import memory_limit
from gptrs.errors import ExecutionError
from gptrs.ir.ops.control_flow import Scan, While
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType

NO_SIZES: Mapping[int, int] = MappingProxyType({})
"""The sizes of programs without symbols."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def dying_values(region: Region) -> list[tuple[Value, ...]]:
    """Return for each instruction the values whose last use it is; results of the region never die.

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
    """Return the peak bytes of `@main` including callees; `sizes` gives its symbols, if any."""
    known = _Peaks(sizes)
    for function in program.functions:  # callees first
        known.functions[function.name] = known.of(function.body)
    return known.functions[program.main.name]


class _Peaks:
    """Computes peaks for given sizes of symbols, including called functions."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self.functions: dict[str, int] = {}

    def of(self, region: Region) -> int:
        """Return the peak bytes of live values, including parameters.

        Every value occupies a dense buffer from the instruction that defines it to its last use;
        parameters, which belong to the caller, are always live. While an instruction runs, its
        operands and results are both live. An instruction with regions or callees needs their peak
        instead, excluding their parameters, which are its operands. A loop counts them as well:
        from the second step on they are separate values, as are the results that a `scan` stacks.
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
        """Return the peak of regions and callees, excluding the values live around them."""
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


def memory_bytes() -> int | None:
    """Return the bytes of memory that machine or container allow this process; None if unknown."""
    limit = memory_limit()
    limits = [] if limit is None else [limit]
    # A system without these sysconf names.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


@cache
def claims_when_written() -> bool:
    """Return whether zeroed pages get memory only when first written (overcommit)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return Path("/proc/sys/vm/overcommit_memory").read_bytes().strip() != b"2"
    return sys.platform == "darwin"


class MemoryNeed:
    """The memory that a program needs besides its parameters, for given sizes of symbols.

    The parameters of `@main` do not count: the caller holds them, or they are mapped from files.
    Nor do results that may reuse donated parameters.
    """

    def __init__(self, program: Program, roles: Sequence[InputRole] = ()) -> None:
        self._program = program
        params = program.main.body.params
        self._given = _nbytes([param.type for param in params])
        named = zip(params, roles, strict=False)
        self._donated = _nbytes([p.type for p, role in named if role is InputRole.DONATED])
        self._all = _nbytes(_made(program))
        """Bytes of all values together: a cheap upper bound that nearly always fits."""

    def require(self, sizes: Mapping[int, int] = NO_SIZES) -> None:
        """Raise ExecutionError if the peak for these sizes exceeds the memory of the process."""
        available, donated = memory_bytes(), _total(self._donated, sizes)
        if available is None or _total(self._all, sizes) - donated <= available:
            return
        peak = program_peak_bytes(self._program, sizes)
        needed = peak - _total(self._given, sizes) - donated
        if needed > available:
            raise ExecutionError(
                f"the program needs {_size(needed)} at once, this machine has {_size(available)}",
                hint="use smaller tensors; `gptrs inspect PROGRAM` shows what is live at the peak",
            )


def _made(program: Program) -> list[TensorType]:
    """Return the types of all values except the parameters of `@main`.

    Values of a function count once, because only one call runs at a time.
    """
    found: list[TensorType] = []
    main = program.main.body
    pending = [function.body for function in program.functions]
    for region in pending:
        if region is not main:
            found += [value.type for value in region.params]
        for made in region.instructions:
            found += [value.type for value in made.results]
            pending += made.regions
    return found


def _nbytes(types: Iterable[TensorType]) -> list[tuple[int, int]]:
    """Return distinct sizes in bytes, which may be symbolic, and their counts.

    They are not added up: a sum of many symbolic sizes could exceed the longest dim.
    """
    return [(type_.nbytes, count) for type_, count in Counter(types).items()]


def _total(several: Iterable[tuple[int, int]], sizes: Mapping[int, int]) -> int:
    return sum(count * evaluated(nbytes, sizes) for nbytes, count in several)


def _size(count: int) -> str:
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.4g} {_UNITS[power]}"
