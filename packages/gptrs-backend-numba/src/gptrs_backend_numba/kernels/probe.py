"""Task functions that only read memory, or only multiply and add in registers."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.vector_ir import F32, VECTOR, WIDTH, VectorEmitter

_CHAINS = 12
"""Sums at once: enough to hide the latency of 4 cycles in 2 units, few enough for registers."""
OPERATIONS = 2 * _CHAINS * WIDTH
"""Operations in one step of `multiply_adds`."""


@intrinsic
def multiply_adds(typing_context, steps):
    """Return the total of chains of `steps` multiply-adds each; no chain can be optimized away.

    They read three registers, as those of a product do: with two, a Zen 4 makes 1.09 times as many.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        left, right = (emit.splat(ir.Constant(F32, factor)) for factor in (0.5, 0.25))
        starts = [ir.Constant(VECTOR, [float(chain)] * WIDTH) for chain in range(_CHAINS)]

        def body(k, sums):
            return [emit.multiply_add(left, right, value) for value in sums]

        total, *others = emit.loop(arguments[0], 1, starts, body)
        for value in others:
            total = builder.fadd(total, value)
        return emit.total(total)

    return types.float32(types.int64), generate


@kernel
def read_task(a, b, c, geometry, task):
    """Add up one block of int64; geometry: its length."""
    count = pointer(geometry, np.int64)[0]
    block = pointer(a + 8 * count * task, np.int64)
    total = 0
    for i in range(count):
        total += block[i]
    pointer(c, np.int64)[task] = total
    return 0


@kernel
def multiply_task(a, b, c, geometry, task):
    """Multiply and add in registers; geometry: the number of steps."""
    pointer(c, np.float32)[task] = multiply_adds(pointer(geometry, np.int64)[0])
    return 0
