"""The table of lowerings: the ops that this backend can run, both for refusal and for compiling."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.backend.op_table import OpTable
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

Lowering = Callable[[ScheduleBuilder, Unit], None]

TABLE = OpTable[Lowering]("numba")
"""Filled by the modules of this package when they are imported."""

MOVABLE: tuple[DType, ...] = dtypes.ALL
"""Element types that can be moved: kernels move 1, 2, 4, 8 or 16 bytes at a time."""
