"""Attention of many queries with AMX, where the processor has it."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import greatest, least
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.amx import attention as kernels
from gptrs_backend_numba.kernels.amx.attention_memory import KEYS
from gptrs_backend_numba.kernels.amx.bf16x3_ir import MOST_PARTS, STEP
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.amx_matmul import is_wanted

_LEAST_COLUMNS, _LEAST_KEYS = 32, 64
"""Queries that share keys, and keys: below these the vector units are as fast. They are, too, where
padding to whole steps adds more than a quarter to the numbers."""
_PANEL_BYTES, _CHUNK_BYTES = 5 << 17, 1 << 19
"""The most that the panels of a task and the parts of a chunk of keys take: together they stay in
the L2 cache."""
_TASKS_A_THREAD = 2
"""Enough for threads that are not equally fast, and for matrices that do not divide evenly; 1 and 4
were slower."""
_LEAST_PANELS = 4
"""In a task, if there are as many: each task splits all keys that its panels see."""


def suits(fields: Mapping[int, int], columns: int) -> bool:
    """Return whether AMX is there, and faster for `columns` queries that share keys."""
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    numbers = fields[geometry.HEAD_DIM] + fields[geometry.VALUE_DIM]
    if not is_wanted() or 4 * sum(_padded(fields)) > 5 * numbers:
        return False
    return columns >= _LEAST_COLUMNS and fields[geometry.S] >= _LEAST_KEYS


def _padded(fields: Mapping[int, int]) -> tuple[int, int]:
    """Return head_dim and value_dim, rounded up to whole steps."""
    head_dim, value_dim = fields[geometry.HEAD_DIM], fields[geometry.VALUE_DIM]
    return -(-head_dim // STEP) * STEP, -(-value_dim // STEP) * STEP


def task(dtype: DType, head_dim: int) -> int:
    """Return the address of the compiled task."""
    return compiled_task(kernels.amx_attention(dtype, head_dim))


def division(
    fields: Mapping[int, int], threads: int, matrices: int, columns: int
) -> dict[int, int]:
    """Return the fields that say how work is divided, which no result depends on.

    The panels of a matrix are dealt to its tasks in turn, so that all have about as much to do if
    later queries see more.
    """
    panels = -(-columns // PANEL)
    head_dim, value_dim = _padded(fields)
    most = greatest(1, _PANEL_BYTES // (PANEL * (2 * MOST_PARTS * head_dim + 4 * value_dim)))
    tasks = 1 if threads == 1 else -(-_TASKS_A_THREAD * threads // matrices)
    tasks = greatest(least(tasks, -(-panels // _LEAST_PANELS)), -(-panels // most))
    chunk = _CHUNK_BYTES // (2 * MOST_PARTS * (head_dim + value_dim)) // KEYS * KEYS
    chunk = least(greatest(chunk, 2 * KEYS), -(-fields[geometry.S] // KEYS) * KEYS)
    return {
        geometry.TASKS_A_MATRIX: tasks,
        geometry.CHUNK: chunk,
        geometry.TASKS: tasks * matrices,
        geometry.THREADS: threads,
    }
