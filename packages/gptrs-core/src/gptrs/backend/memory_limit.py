"""Refuses a program that this machine has not the memory for, before any of it is allocated."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from gptrs.backend.memory_plan import NO_SIZES, program_peak_bytes
from gptrs.backend.process_limits import memory_limit
from gptrs.backend.protocol import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir.program import Program
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def memory_bytes() -> int | None:
    """Return the memory that this process may use, of machine or container; None if unknown."""
    limit = memory_limit()
    limits = [] if limit is None else [limit]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a system without these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


@cache
def claims_when_written() -> bool:
    """Return whether the system gives memory to zeros when they are first written, not before."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return Path("/proc/sys/vm/overcommit_memory").read_bytes().strip() != b"2"
    return sys.platform == "darwin"


class MemoryNeed:
    """The memory that a program needs besides its parameters, for sizes of its symbols if any.

    The parameters of `@main` are not counted: the caller has them, or they are mapped from files.
    Neither are results that may take the place of parameters that are donated.
    """

    def __init__(self, program: Program, roles: Sequence[InputRole] = ()) -> None:
        self._program = program
        params = program.main.body.params
        self._given = _nbytes([param.type for param in params])
        named = zip(params, roles, strict=False)
        self._donated = _nbytes([p.type for p, role in named if role is InputRole.DONATED])
        self._all = _nbytes(_made(program))
        """Bytes of all values together: computed in no time, and nearly always there is room."""

    def require(self, sizes: Mapping[int, int] = NO_SIZES) -> None:
        """ExecutionError if what is needed at one time with these sizes is more than there is."""
        available = memory_bytes()
        if available is None or evaluated(self._all - self._donated, sizes) <= available:
            return
        peak = program_peak_bytes(self._program, sizes)
        needed = peak - evaluated(self._given + self._donated, sizes)
        if needed > available:
            raise ExecutionError(
                f"the program needs {_size(needed)} at one time, this machine has"
                f" {_size(available)}",
                hint="use smaller tensors; `gptrs inspect PROGRAM` shows what is live at the peak",
            )


def _made(program: Program) -> list[TensorType]:
    """Return the types of all values but the parameters of `@main`.

    Those of functions count once: however often they are called, one call runs at a time.
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


def _nbytes(types: Iterable[TensorType]) -> int:
    # There are few types, and products of symbolic sizes take long.
    return sum(count * type_.nbytes for type_, count in Counter(types).items())


def _size(count: int) -> str:
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.4g} {_UNITS[power]}"
