"""`gptrs.numba.code_table.v1`: functions of 8-bit codes as tables of their 256 results.

Operands: codes, si8 or ui8; the table, 256 elements of si8 or ui8, by the bits of a code. The
result has the shape of the codes and the type of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.code_table import code_table
from gptrs_backend_numba.lowering.integer_products import BYTES
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import memory_order

CODE_TABLE = "gptrs.numba.code_table.v1"
_CODES_A_TASK = 1 << 16
_PARALLEL_FROM = 2 * _CODES_A_TASK
"""Codes from which it pays to share the work: a task takes 10 microseconds."""


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if op.attrs or len(operands) != 2 or len(op.results) != 1:
        return False
    codes, table = operands
    known = codes.dtype in BYTES and table.dtype in BYTES and table.shape == (256,)
    return known and op.results == (codes.with_dtype(table.dtype),)


@custom_call(CODE_TABLE, when=_when)
def look_codes_up(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one pass over codes, in the order in which they lie."""
    codes, table = (builder.view(value) for value in unit.last.operands)
    order = memory_order(codes.shape, [codes])
    out = builder.define(unit.last.result, order)
    if out.size == 0:
        return
    reads = builder.contiguous(codes.transposed(order)), builder.contiguous(table)
    builder.call_tasks(
        compiled_task(code_table()),
        -(-out.size // _CODES_A_TASK),
        reads,
        out,
        [out.size, _CODES_A_TASK],
        builder.threads_from(_PARALLEL_FROM, out.size),
    )
