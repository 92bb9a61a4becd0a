"""Kernel of `cumulative`: running totals along the lines of a tensor."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import cast_element_of, memory_of, rounded_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import offset, pointer
from gptrs_backend_numba.kernels.reduction import combined_of


@kernel
def cumulative_task(
    x, unused, out, geometry, task,
    *, OPERAND, RESULT, START, IDENTITY, EXCLUSIVE, combine, rounded, store,
):  # fmt: skip
    """Compute the totals of a block of lines, up to each element or to the one before it.

    Geometry: number of lines, lines a task, length; the first element and the step in the operand
    and in the result, where a step may be negative; how many elements follow the axis in the
    result; the number of axes of lines and (size, stride) of each.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    lines, block, n, x_first, x_step, o_first, o_step = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    inner, rank = G[7], G[8]
    for line in range(task * block, min(lines, (task + 1) * block)):
        source = x_first + offset(G, 9, rank, line)
        outer = line // inner
        target = o_first + outer * n * inner + line - outer * inner
        # What is shown where no element counts differs from the start: a sum of nothing is 0.0,
        # but sums begin with -0.0, so that one of nothing but -0.0 keeps its sign.
        shown, total = IDENTITY, START
        for _ in range(n):
            if EXCLUSIVE:
                O[target] = store(rounded(shown))
            total = combine(total, X[source])
            shown = total
            if not EXCLUSIVE:
                O[target] = store(rounded(shown))
            source += x_step
            target += o_step
    return 0


def cumulative(
    kind: str,
    start: np.generic,
    identity: np.generic,
    operand: DType,
    accumulator: DType,
    result: DType,
    *,
    exclusive: bool,
) -> SpecializedKernel:
    """Return the kernel; totals begin with `start`, an exclusive one shows `identity` first."""
    return cumulative_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        START=start,
        IDENTITY=identity,
        EXCLUSIVE=exclusive,
        combine=combined_of(kind, operand, accumulator),
        rounded=rounded_of(accumulator),
        store=cast_element_of(accumulator, result),
    )
