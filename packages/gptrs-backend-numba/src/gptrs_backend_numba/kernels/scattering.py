"""Kernels that combine tensors into elements named by indices of int64."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import named, register_jitable
from gptrs_backend_numba.codegen.elements import (
    Binary,
    bits_of_width,
    load_of,
    memory_of,
    store_of,
)
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import offset, pointer
from gptrs_backend_numba.kernels.reduction import combined_of


@kernel
def scatter_kernel(updates, indices, out, geometry, *, UPDATE, RESULT, combine):
    """Combine each update with an element of the result, in row-major order of the updates.

    Return 1, before anything is written, when an index is out of range. Geometry: number of
    indices, size of the axis they count along, its stride in the result; then how to walk over the
    updates: number of rows, of axes besides the row, length of a row; its step in updates, indices
    and result; (size, stride) of each of these axes in updates, in indices, in the result. The axis
    has stride 0 in the result there.
    """
    G = pointer(geometry, np.int64)
    U, I, O = pointer(updates, UPDATE), pointer(indices, np.int64), pointer(out, RESULT)
    count, limit, along, rows, rank, n = G[0], G[1], G[2], G[3], G[4], G[5]
    u_step, i_step, o_step = G[6], G[7], G[8]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    for row in range(rows):
        u = offset(G, 9, rank, row)
        i = offset(G, 9 + 2 * rank, rank, row)
        o = offset(G, 9 + 4 * rank, rank, row)
        if i_step == 0 and u_step == 1 and o_step == 1:  # whole rows: this loop vectorizes
            o += I[i] * along
            for j in range(n):
                O[o + j] = combine(O[o + j], U[u + j])
        else:
            for j in range(n):
                u_at = u + j * u_step
                o_at = o + j * o_step + I[i + j * i_step] * along
                O[o_at] = combine(O[o_at], U[u_at])
    return 0


@register_jitable
def replaced(old, update):
    """Return the update."""
    return update


def replace(width: int) -> SpecializedKernel:
    """Return the kernel that writes elements of `width` bytes one after another."""
    bits = bits_of_width(width)
    return scatter_kernel.specialize(UPDATE=bits, RESULT=bits, combine=replaced)


def combine(kind: str, operand: DType, accumulator: DType) -> SpecializedKernel:
    """Return the kernel that reduces updates into a result, which holds `accumulator`s."""
    return scatter_kernel.specialize(
        UPDATE=memory_of(operand),
        RESULT=memory_of(accumulator),
        combine=_combined_element_of(kind, operand, accumulator),
    )


@cache
def _combined_element_of(kind: str, operand: DType, accumulator: DType) -> Binary:
    """Return the function of an element of the result and an update to the next element."""
    load, store = load_of(accumulator), store_of(accumulator)
    combined = combined_of(kind, operand, accumulator)

    @register_jitable
    @named(f"{kind}_of_{operand}_into_{accumulator}")
    def combined_element(old, update):
        return store(combined(load(old), update))

    return combined_element
