"""Attention of many queries on AMX, where the processor has it with bf16."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.compiled import compiled_source_task
from gptrs_backend_numba.kernels.amx.attention import KEYS, unit_source
from gptrs_backend_numba.kernels.amx.bf16x3_ir import MOST_PARTS, STEP
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.amx_matmul import is_wanted

_LEAST_COLUMNS, _LEAST_KEYS, _MOST_PADDED = 32, 64, 1.25
"""Of queries that share keys, of keys, and of their numbers, which are padded to whole steps:
beyond these vector registers are as fast."""
_PANEL_BYTES, _CHUNK_BYTES = 5 << 17, 1 << 19
"""Of the panels of a task and of the parts of its keys, at most: they stay in the L2 cache."""
_TASKS_A_THREAD = 2
"""Enough for threads that are not equally fast, and for matrices that do not divide evenly."""
_LEAST_PANELS = 4
"""In a task, if there are as many: it splits all keys that they see."""


def suits(fields: Mapping[str, int], columns: int) -> bool:
    """Whether attention of `columns` queries that share keys is quicker there, and there is one."""
    large = columns >= _LEAST_COLUMNS and fields["S"] >= _LEAST_KEYS
    dense = sum(_padded(fields)) <= _MOST_PADDED * (fields["D"] + fields["E"])
    return large and dense and is_wanted()


def _padded(fields: Mapping[str, int]) -> tuple[int, int]:
    """Numbers of a key and of a value, in whole steps."""
    return -(-fields["D"] // STEP) * STEP, -(-fields["E"] // STEP) * STEP


def task(dtype: DType, depth: int) -> int:
    """The address of the function of a task."""
    return compiled_source_task(*unit_source(dtype, depth))


def division(
    fields: Mapping[str, int], threads: int, matrices: int, columns: int
) -> dict[str, int]:
    """The fields that say how work is divided; a result is the same in whatever task.

    The panels of a matrix are dealt to `RUNS` tasks in turn, so that all have about as much to do
    if later queries see more.
    """
    panels = -(-columns // PANEL)
    depth, width = _padded(fields)
    most = max(1, _PANEL_BYTES // (PANEL * (2 * MOST_PARTS * depth + 4 * width)))
    runs = 1 if threads == 1 else -(-_TASKS_A_THREAD * threads // matrices)
    runs = max(min(runs, -(-panels // _LEAST_PANELS)), -(-panels // most))
    chunk = _CHUNK_BYTES // (2 * MOST_PARTS * (depth + width)) // KEYS * KEYS
    chunk = min(max(chunk, 2 * KEYS), -(-fields["S"] // KEYS) * KEYS)
    return {"RUNS": runs, "CHUNK": chunk, "TASKS": runs * matrices, "THREADS": threads}
