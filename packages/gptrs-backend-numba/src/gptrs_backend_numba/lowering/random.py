"""Random ops: one kernel per element type, in tasks that each compute a part of the stream."""

from __future__ import annotations

import math
from typing import cast

from gptrs.ir.ops import random as ops
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels import random as kernels
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder


def rng(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call; the number of a task says where in the stream it begins."""
    op = cast("ops.Random", unit.last.op)
    seed = builder.contiguous(builder.view(unit.last.operands[0]))
    out = builder.define(unit.last.result)
    count = math.prod(op.shape)
    blocks = -(-count * max(op.dtype.bits, 32) // 128)
    kernel = kernels.random(op.dtype, normal=isinstance(op, ops.RngNormal))
    builder.call_tasks(
        compiled_task(kernel),
        -(-blocks // kernels.BLOCKS),
        (seed, seed),
        out,
        [count],
        builder.threads_from(kernels.BLOCKS + 1, blocks),
    )


for _class in (ops.RngUniform, ops.RngNormal):
    TABLE.register(_class, dtypes=_class.allowed)(rng)
