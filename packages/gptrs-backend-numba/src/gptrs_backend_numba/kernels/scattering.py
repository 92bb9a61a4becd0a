"""Sources of the kernels that combine tensors into elements named by indices of int64."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import (
    combined,
    element,
    load,
    store,
    to_accumulator,
    typed_pointer,
)

_SCATTER = """
# {label}
def kernel(updates, indices, out, geometry):
    G = pointer(geometry, np.int64)
    U, I, O = {U}, pointer(indices, np.int64), {O}
    count, limit, along, rows, rank, n = G[0], G[1], G[2], G[3], G[4], G[5]
    u_step, i_step, o_step = G[6], G[7], G[8]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    for row in range(rows):
        u = offset(G, 9, rank, row)
        i = offset(G, 9 + 2 * rank, rank, row)
        o = offset(G, 9 + 4 * rank, rank, row)
        if i_step == 0 and u_step == 1 and o_step == 1:
            o += I[i] * along
            for j in range(n):
                {contiguous}
        else:
            for j in range(n):
                u_at = u + j * u_step
                o_at = o + j * o_step + I[i + j * i_step] * along
                {strided}
    return 0
"""


def replace_source(width: int) -> str:
    """Elements of `width` bytes written one after another; geometry as of `combine_source`."""
    pointers = [f"pointer({name}, {element(width)})" for name in ("updates", "out")]
    return _SCATTER.format(
        label="replace",
        U=pointers[0],
        O=pointers[1],
        contiguous="O[o + j] = U[u + j]",
        strided="O[o_at] = U[u_at]",
    )


def combine_source(kind: str, operand: DType, accumulator: DType) -> str:
    """Each update combined into an element of the result, which holds `accumulator`s.

    Returns 1, before it writes, when an index is out of range. Geometry: number of indices, size
    of the axis they count along, its stride in the result; then how to walk over the updates in
    row-major order: number of rows, of axes besides the row, length of a row; its step in updates,
    indices and result; (size, stride) of each of these axes in updates, in indices, in the result.
    The axis has stride 0 in the result there.
    """

    def step(source: str, target: str) -> str:
        value = to_accumulator(load(operand, f"U[{source}]"), operand, accumulator)
        total = combined(kind, accumulator, load(accumulator, f"O[{target}]"), value)
        return f"O[{target}] = {store(accumulator, total)}"

    return _SCATTER.format(
        label=f"{kind} of {operand} in {accumulator}",
        U=typed_pointer("updates", operand),
        O=typed_pointer("out", accumulator),
        contiguous=step("u + j", "o + j"),
        strided=step("u_at", "o_at"),
    )
