"""Source of the kernel of `cumulative`: running totals along the lines of a tensor."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import (
    cast_element,
    load,
    rounded,
    to_accumulator,
    typed_pointer,
)
from gptrs_backend_numba.kernels.reduction import combined

_CUMULATIVE = """
# {kind} of {operand} kept in {accumulator} from {start!r}, returned as {result}
def kernel(x, unused, out, geometry, task):
    G = pointer(geometry, np.int64)
    X, O = {X}, {O}
    lines, block, n, x_first, x_step, o_first, o_step = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    inner, rank = G[7], G[8]
    for line in range(task * block, min(lines, (task + 1) * block)):
        source = x_first + offset(G, 9, rank, line)
        outer = line // inner
        target = o_first + outer * n * inner + line - outer * inner
        shown, total = IDENTITY, START
        for i in range(n):
            {before}
            total = {total}
            shown = total
            {after}
            source += x_step
            target += o_step
    return 0
"""


def cumulative_source(
    kind: str, start: float, operand: DType, accumulator: DType, result: DType, *, exclusive: bool
) -> str:
    """Totals up to each element, or (`exclusive`) up to the one before it, a block of lines a task.

    `START` and `IDENTITY` are global names: registers of `start`, with which totals begin, and of
    what is shown where no element counts. Geometry: number of lines, lines a task, length; the
    first element and the step in the operand and in the result, where a step may be negative; how
    many elements follow the axis in the result; the number of axes of lines and (size, stride) of
    each.
    """
    value = to_accumulator(load(operand, "X[source]"), operand, accumulator)
    shown = cast_element(rounded(accumulator, "shown"), accumulator, result)
    written = f"O[target] = {shown}"
    return _CUMULATIVE.format(
        kind=kind,
        operand=operand,
        accumulator=accumulator,
        start=start,
        result=result,
        X=typed_pointer("x", operand),
        O=typed_pointer("out", result),
        total=combined(kind, accumulator, "total", value),
        before=written if exclusive else "pass",
        after="pass" if exclusive else written,
    )
