"""Refuses a program that this machine has not the memory for, before any of it is allocated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from gptrs.backend.memory_plan import NO_SIZES, program_peak_bytes
from gptrs.backend.process_limits import memory_limit
from gptrs.errors import ExecutionError
from gptrs.ir.program import Program
from gptrs.ir.symbolic_dim import evaluated

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def memory_bytes() -> int | None:
    """Return the memory that this process may use, of machine or container; None if unknown."""
    limit = memory_limit()
    limits = [] if limit is None else [limit]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a system without these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def require_memory(program: Program, sizes: Mapping[int, int] = NO_SIZES) -> None:
    """ExecutionError if the values of `program` need more at one time than there is.

    The parameters of `@main` are not counted: the caller has them, or they are mapped from files.
    `sizes` of its symbols, if it has any.
    """
    available = memory_bytes()
    if available is None:
        return
    params = program.main.body.params
    given = sum(evaluated(param.type.nbytes, sizes) for param in params)
    needed = program_peak_bytes(program, sizes) - given
    if needed > available:
        raise ExecutionError(
            f"the program needs {_size(needed)} at one time, this machine has {_size(available)}",
            hint="use smaller tensors; `gptrs inspect PROGRAM` shows what is live at the peak",
        )


def _size(count: int) -> str:
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.4g} {_UNITS[power]}"
