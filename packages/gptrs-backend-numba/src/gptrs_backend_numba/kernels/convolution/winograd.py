"""Kernels of Winograd's algorithms: images into tiles, sums of tiles into results.

Between the two, 16 or 36 independent products are computed by the tiles of `convolution.direct`.
What lies outside of an image is read from a line of zeros, and results outside are written to a
line that nobody reads.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import I64, VECTOR, WIDTH, ZERO, VectorEmitter
from gptrs_backend_numba.kernels.convolution.direct import (
    Epilogue,
    masked_load,
    masked_store,
    masks_of,
)
from gptrs_backend_numba.kernels.convolution.job import (
    ACTIVATION,
    BOUNDS,
    EXTRA,
    RESIDUAL,
    SCALE,
    SHIFT,
    WINOGRAD_FIELDS,
    positions,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import store_narrow

# The transforms of Winograd's algorithms F(2x2, 3x3) and F(4x4, 3x3), a lane for each channel.
#
# Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (2016). A tile `d` of 4x4 or 6x6
# numbers becomes `B^T d B`, is multiplied element by element by transformed weights, and the sums
# `m` over the channels become 2x2 or 4x4 results `A^T m A`.


class _Vectors:
    """Arithmetic on vectors."""

    def __init__(self, emit):
        self.add, self.sub = emit.builder.fadd, emit.builder.fsub
        self._emit = emit

    def times(self, factor, x, added):
        """Return `factor * x + added`."""
        constant = ir.Constant(VECTOR, [float(factor)] * WIDTH)
        return self._emit.multiply_add(x, constant, added)


def _before_4(v, d):
    """Return `B^T d` of six vectors."""
    even, odd = v.times(-4, d[2], d[4]), v.times(-4, d[1], d[3])
    near, far = v.sub(d[4], d[2]), v.sub(d[3], d[1])
    return [
        v.times(4, d[0], v.times(-5, d[2], d[4])),
        v.add(even, odd),
        v.sub(even, odd),
        v.times(2, far, near),
        v.times(-2, far, near),
        v.times(4, d[1], v.times(-5, d[3], d[5])),
    ]


def _after_4(v, m):
    """Return `A^T m` of six vectors."""
    p, q = v.add(m[1], m[2]), v.sub(m[1], m[2])
    r, s = v.add(m[3], m[4]), v.sub(m[3], m[4])
    return [
        v.add(v.add(m[0], p), r),
        v.times(2, s, q),
        v.times(4, r, p),
        v.add(v.times(8, s, q), m[5]),
    ]


def _before_2(v, d):
    """Return `B^T d` of four vectors."""
    return [v.sub(d[0], d[2]), v.add(d[1], d[2]), v.sub(d[2], d[1]), v.sub(d[1], d[3])]


def _after_2(v, m):
    """Return `A^T m` of four vectors."""
    return [v.add(v.add(m[0], m[1]), m[2]), v.sub(v.sub(m[1], m[2]), m[3])]


# F(4x4, 3x3) with the points 0, 2/3, -2/3, 3/2, -3/2 and infinity, for numbers that are rounded to
# bf16 between the transforms. Roundings grow 4.8 times (root mean square, 7.1 at most) compared
# with direct sums, with the points 0, 1, -1, 2, -2 10.8 times (31 at most). As 2/3 is the
# inverse of 3/2, more coefficients are 1.
_NEAR, _FAR = 2 / 3, 3 / 2
_BOTH = _NEAR**2 + _FAR**2


def _before_even_4(v, d):
    """Return `B^T d` of six vectors."""
    rows = [v.times(-_BOTH, d[2], v.add(d[0], d[4])), v.times(-_BOTH, d[3], v.add(d[1], d[5]))]
    inner = []
    for point, other in ((_NEAR, _FAR), (_FAR, _NEAR)):
        even, odd = v.times(-(other**2), d[2], d[4]), v.times(-(other**2), d[1], d[3])
        inner += [v.times(point, odd, even), v.times(-point, odd, even)]
    return [rows[0], *inner, rows[1]]


def _after_even_4(v, m):
    """Return `A^T m` of six vectors."""
    p, q = v.add(m[1], m[2]), v.sub(m[1], m[2])
    r, s = v.add(m[3], m[4]), v.sub(m[3], m[4])
    return [
        v.add(v.add(m[0], p), r),
        v.times(_NEAR, q, v.times(_FAR, s, ZERO)),
        v.times(_NEAR**2, p, v.times(_FAR**2, r, ZERO)),
        v.times(_NEAR**3, q, v.times(_FAR**3, s, m[5])),
    ]


_BEFORE = {
    (2, False): _before_2, (4, False): _before_4, (2, True): _before_2, (4, True): _before_even_4,
}  # fmt: skip
_AFTER = {
    (2, False): _after_2, (4, False): _after_4, (2, True): _after_2, (4, True): _after_even_4,
}  # fmt: skip
"""The transforms, by the side of a tile of results, and whether numbers are rounded to bf16."""


def _both_ways(v, transform, columns):
    """Apply `transform` to each column, then to each row of the result; return the rows."""
    half = [transform(v, column) for column in columns]
    return [transform(v, list(row)) for row in zip(*half, strict=True)]


def _address(emit, table, position):
    return emit.pointer(emit.load(emit.moved(table, 8 * position), I64, 8))


@cache
def winograd_before(side: int, rounded: bool):
    """Intrinsic: `B^T d B` of one tile with `side` x `side` results, all channels.

    Arguments: the address of a table with the addresses of the positions of the image, row by row;
    of the first result, and the bytes to each next one; the number of channels. Results are f32,
    bf16 if they are `rounded`.
    """
    seen, size = side + 2, 2 if rounded else 4
    store = store_narrow if rounded else masked_store

    @named_intrinsic(f"winograd_before_{side}_{int(rounded)}")
    def transform(typing_context, table, out, step, channels):
        def generate(context, builder, signature, arguments):
            table, out, step, channels = arguments
            emit = VectorEmitter(builder)
            table, out, v = emit.pointer(table), emit.pointer(out), _Vectors(emit)

            def body(c, _):
                addresses = [emit.moved(_address(emit, table, p), (c, 4)) for p in range(seen**2)]
                first = emit.moved(out, (c, size))
                for (mask,) in masks_of(emit, builder.sub(channels, c)):
                    columns = [
                        [masked_load(emit, addresses[seen * i + j], mask) for i in range(seen)]
                        for j in range(seen)
                    ]
                    address = first
                    for row in _both_ways(v, _BEFORE[side, rounded], columns):
                        for value in row:
                            store(emit, value, address, mask)
                            address = emit.moved(address, (step, 1))
                return []

            emit.loop(channels, WIDTH, [], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transform


@cache
def winograd_after(side: int, rounded: bool):
    """Intrinsic: `A^T m A` of one tile and the epilogue, all channels.

    Arguments: the address of the first sum, and the bytes to each next one; the number of channels;
    addresses of the scale and the shift; of a table of the addresses of the positions of the
    residual, or 0; of the two bounds; of a table of the addresses of the results.
    """
    seen = side + 2

    @named_intrinsic(f"winograd_after_{side}_{int(rounded)}")
    def transform(typing_context, sums, step, channels, scale, shift, residuals, bounds, outs):
        def generate(context, builder, signature, arguments):
            sums, step, channels, scale, shift, residuals, bounds, outs = arguments
            emit = VectorEmitter(builder)
            sums, scale, shift, bounds, outs = (
                emit.pointer(address) for address in (sums, scale, shift, bounds, outs)
            )
            v = _Vectors(emit)

            def block(c, mask):
                first = emit.moved(sums, (c, 4))
                columns = [
                    [
                        masked_load(emit, emit.moved(first, (step, seen * i + j)), mask)
                        for i in range(seen)
                    ]
                    for j in range(seen)
                ]
                values = [x for row in _both_ways(v, _AFTER[side, rounded], columns) for x in row]
                own = (emit.moved(pointer, (c, 4)) for pointer in (scale, shift))
                epilogue = Epilogue(emit, *own, residuals, bounds)

                def address_in(table):
                    return lambda i: emit.moved(_address(emit, table, i), (c, 4))

                added = address_in(emit.pointer(residuals))
                epilogue.finish(values, [0] * len(values), {0: mask}, address_in(outs), added)

            def body(c, _):
                for (mask,) in masks_of(emit, builder.sub(channels, c)):
                    block(c, mask)
                return []

            emit.loop(channels, WIDTH, [], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return transform


H, W, C, TOP, LEFT, OH, OW = positions(WINOGRAD_FIELDS, "H W C TOP LEFT OH OW")
DOWN, ACROSS, FIRST, COUNT, COUNT_A_TASK = positions(
    WINOGRAD_FIELDS, "DOWN ACROSS FIRST COUNT COUNT_A_TASK"
)


@kernel
def before_task(x, unused, out, geometry, task, *, SIDE, SEEN, SIZE, transform):
    """Transform some tiles of images, for `SIDE` x `SIDE` results each, into matrices.

    Their numbers have `SIZE` bytes.
    """
    G = pointer(geometry, np.int64)
    line, row_bytes, count = 4 * G[C], SIZE * G[C], G[COUNT]
    table = np.empty(SEEN * SEEN, np.int64)
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN]) - G[TOP]
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS]) - G[LEFT]
        for i in range(SEEN):
            for j in range(SEEN):
                at = G[EXTRA]
                if 0 <= top + i < G[H] and 0 <= left + j < G[W]:
                    at = x + ((image * G[H] + top + i) * G[W] + left + j) * line
                table[SEEN * i + j] = at
        transform(table.ctypes.data, out + tile * row_bytes, count * row_bytes, G[C])
    keep_alive(table)
    return 0


@kernel
def after_task(sums, unused, out, geometry, task, *, SIDE, transform):
    """Transform matrices of sums (tile, channel) into results."""
    G = pointer(geometry, np.int64)
    line, count = 4 * G[C], G[COUNT]
    table = np.empty(2 * SIDE * SIDE, np.int64)
    unread = np.zeros(G[C], np.float32)
    nowhere = unread.ctypes.data
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN])
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS])
        for i in range(SIDE):
            for j in range(SIDE):
                at, residual = nowhere, nowhere
                if top + i < G[OH] and left + j < G[OW]:
                    start = ((image * G[OH] + top + i) * G[OW] + left + j) * line
                    at, residual = out + start, G[RESIDUAL] + start
                position = SIDE * i + j
                table[position], table[SIDE * SIDE + position] = at, residual
        addresses = table.ctypes.data
        residuals = addresses + 8 * SIDE * SIDE if G[RESIDUAL] else 0
        transform(sums + tile * line, count * line, G[C], G[SCALE], G[SHIFT], residuals,
                  G[BOUNDS], addresses)  # fmt: skip
        if G[ACTIVATION]:
            for position in range(SIDE * SIDE):
                if table[position] != nowhere:
                    call_compiled(G[ACTIVATION], table[position], 1, line, G[C], 0, 0, 0, 0, 0)
    keep_alive(table)
    keep_alive(unread)
    return 0


def before(side: int, *, rounded: bool) -> SpecializedKernel:
    """Return the kernel that transforms images, for tiles of `side` x `side` results."""
    return before_task.specialize(
        SIDE=side,
        SEEN=side + 2,
        SIZE=2 if rounded else 4,
        transform=winograd_before(side, rounded),
    )


def after(side: int, *, rounded: bool) -> SpecializedKernel:
    """Return the kernel that transforms sums into results."""
    return after_task.specialize(SIDE=side, transform=winograd_after(side, rounded))
