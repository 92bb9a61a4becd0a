"""Images rounded to bf16, with zeros around them: what convolutions of pairs of bf16 read."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import call_llvm, pointer
from gptrs_backend_numba.codegen.vector_ir import VECTOR, WIDTH, ZERO, VectorEmitter, number
from gptrs_backend_numba.kernels.convolution.direct import lanes_below, masked_load
from gptrs_backend_numba.kernels.convolution.job import ROUND_FIELDS
from gptrs_backend_numba.kernels.matmul.bf16_ir import store_narrow


@intrinsic
def round_run(typing_context, source, target, count):
    """Round `count` numbers, f32 at the address `source`, to bf16 at `target`."""

    def generate(context, builder, signature, arguments):
        source, target, count = arguments
        emit = VectorEmitter(builder)
        source, target = emit.pointer(source), emit.pointer(target)

        def vector(at, _):
            mask = lanes_below(emit, builder.sub(count, at))
            value = masked_load(emit, emit.moved(source, (at, 4)), mask)
            store_narrow(emit, value, emit.moved(target, (at, 2)), mask)
            return []

        emit.loop(count, WIDTH, [], vector)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def round_three(typing_context, source, target, count):
    """Round `count` positions of three channels, with a zero behind each.

    An image of colours has 150 thousand: one after another they took a third of the first layers
    of MobileNetV2.
    """

    def generate(context, builder, signature, arguments):
        source, target, count = arguments
        emit = VectorEmitter(builder)
        source, target = emit.pointer(source), emit.pointer(target)
        colours = ir.Constant(ir.VectorType(ir.IntType(1), WIDTH), [1, 1, 1, 0] * (WIDTH // 4))

        def vector(at, _):
            lanes = builder.mul(builder.sub(count, at), number(4))
            mask = builder.and_(lanes_below(emit, lanes), colours)
            # The lanes of the mask are filled with numbers that follow one another in memory.
            name = f"llvm.masked.expandload.v{WIDTH}f32"
            operands = [emit.moved(source, (at, 12)), mask, ZERO]
            value = call_llvm(builder, name, VECTOR, operands)
            store_narrow(emit, value, emit.moved(target, (at, 8)), lanes_below(emit, lanes))
            return []

        emit.loop(count, WIDTH // 4, [], vector)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


H, W, C, TOP, LEFT, HEIGHT, ACROSS, DEPTH, ROWS, ROWS_A_TASK = range(len(ROUND_FIELDS))


@kernel
def round_task(x, unused, out, geometry, task):
    """Round some rows of images, with zeros around them and behind an odd number of channels."""
    G = pointer(geometry, np.int64)
    O = pointer(out, np.uint16)
    w, c, depth, left, across = G[W], G[C], G[DEPTH], G[LEFT], G[ACROSS]
    for row in range(task * G[ROWS_A_TASK], min((task + 1) * G[ROWS_A_TASK], G[ROWS])):
        image = row // G[HEIGHT]
        i = row - image * G[HEIGHT] - G[TOP]
        o = row * across * depth
        if i < 0 or i >= G[H]:
            for j in range(across * depth):
                O[o + j] = 0
            continue
        source = x + 4 * c * w * (image * G[H] + i)
        for j in range(left * depth):
            O[o + j] = 0
        for j in range((left + w) * depth, across * depth):
            O[o + j] = 0
        o += left * depth
        if depth == c:
            round_run(source, out + 2 * o, w * c)
            continue
        if c == 3:
            round_three(source, out + 2 * o, w)
            continue
        for j in range(w):
            round_run(source + 4 * c * j, out + 2 * (o + depth * j), c)
            O[o + depth * j + c] = 0
    return 0
