"""Depthwise convolutions of 8-bit integers: a lane for each channel.

Weights less their zero point have 32 bits. The geometry is that of `integer`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    call_compiled,
    kernel,
    kernel_part,
)
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.matmul.depthwise_quads_ir import HAS_QUADS, depthwise_quads
from gptrs_backend_numba.kernels.matmul.gemm import FINISH, M
from gptrs_backend_numba.kernels.matmul.integer import (
    APART_ACROSS,
    APART_DOWN,
    CHANNELS,
    CHUNK,
    FLIP,
    HAS_OTHER_ZERO,
    HAS_TERM,
    HAS_ZERO,
    IMAGE_HEIGHT,
    IMAGE_WIDTH,
    OTHER_FLIP,
    OTHER_ZERO,
    OTHER_ZERO_STEP,
    OUT_HEIGHT,
    OUT_WIDTH,
    PADDED_ROW,
    ROWS_A_TASK,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    TAPS_ACROSS,
    TAPS_DOWN,
    TERM,
    ZERO,
)
from gptrs_backend_numba.kernels.matmul.integer_ir import FOUR, NEIGHBOURS, depthwise_sums

ROWS_OF_SUMS = 8
"""Positions whose sums are finished together, in the L1 cache."""
_PADDED_BYTES = 1 << 17
"""Padded rows of images that a task holds, in the L2 cache."""
_USUAL_COLUMNS = 3


@kernel_part
def spread_weights(G, weight, factors, begins, line, *, QUADS):
    """Write weights less their zero point as products read them, and what the sums begin with."""
    channels, taps = G[CHANNELS], G[TAPS_DOWN] * G[TAPS_ACROSS]
    F, Q4, B = pointer(factors, np.int32), pointer(factors, np.int8), pointer(begins, np.int32)
    other, zero = np.int32(0), np.int32(G[FLIP])
    if G[HAS_ZERO]:
        zero = np.int32(zero + pointer(G[ZERO], np.int32)[0])
    W, Q, T = pointer(weight, np.int8), pointer(G[OTHER_ZERO], np.int32), pointer(G[TERM], np.int32)
    U = pointer(weight, np.uint8)
    for c in range(channels):
        if G[HAS_OTHER_ZERO]:
            other = Q[c * G[OTHER_ZERO_STEP]]
        total = np.int32(0)
        for tap in range(taps):
            code = np.int32(W[tap * channels + c])
            if G[OTHER_FLIP]:
                code = np.int32(U[tap * channels + c])
            code = np.int32(code - other)
            if QUADS:
                row = tap // G[TAPS_ACROSS]
                quad = (tap - row * G[TAPS_ACROSS]) * line + c
                Q4[FOUR * quad + row] = np.int8(code)
            else:
                F[tap * line + c] = code
            total = np.int32(total + code)
        B[c] = np.int32(-zero * total)
        if G[HAS_TERM]:
            B[c] = np.int32(B[c] + T[c])


@kernel_part
def sum_row(
    G, windows, factors, begin, line, sums, out, geometry, row, *, QUADS, sums_of, quads_of
):  # fmt: skip
    """Compute a row of positions; the first window begins at `windows`."""
    channels = G[CHANNELS]
    down, across = G[APART_DOWN] * G[IMAGE_WIDTH] * channels, G[APART_ACROSS] * channels
    step = G[STRIDE_ACROSS] * channels
    for first in range(0, G[OUT_WIDTH], ROWS_OF_SUMS):
        count = min(ROWS_OF_SUMS, G[OUT_WIDTH] - first)
        for each in range(0, count, NEIGHBOURS):
            at, target = windows + (first + each) * step, sums + 4 * each * line
            positions = min(NEIGHBOURS, count - each)
            if QUADS:
                quads_of(positions, at, down, across, factors, begin, channels, line, target)
            else:
                sums_of(positions, at, step, down, G[TAPS_DOWN], across, G[TAPS_ACROSS], factors,
                        begin, channels, line, target)  # fmt: skip
        call_compiled(G[FINISH], sums, line, out, row * G[OUT_WIDTH] + first, 0, count, channels,
                      geometry, 0)  # fmt: skip


@kernel
def integer_depthwise_task(x, weight, out, geometry, task, *, spread_weights, pad_row, sum_row):
    """Compute some rows of positions, the result of each a row of channels.

    The task pads the rows of images that a few rows of positions see: in the L2 cache that takes
    half the time of a pass over all images.
    """
    G = pointer(geometry, np.int64)
    channels, taps = G[CHANNELS], G[TAPS_DOWN] * G[TAPS_ACROSS]
    line = (channels + WIDTH - 1) // WIDTH * WIDTH
    factors = np.zeros((taps + 1) * line, np.int32)
    sums = np.empty(ROWS_OF_SUMS * line, np.int32)
    W_ = np.int64(factors.ctypes.data)
    begin = W_ + 4 * taps * line
    spread_weights(G, weight, W_, begin, line)
    S = np.int64(sums.ctypes.data)
    row_step = G[IMAGE_WIDTH] * channels
    seen, stride = (G[TAPS_DOWN] - 1) * G[APART_DOWN] + 1, G[STRIDE_DOWN]
    together = max(1, (_PADDED_BYTES // max(1, row_step) - seen) // stride + 1)
    own = np.empty(((together - 1) * stride + seen) * row_step + 2 * CHUNK, np.uint8)
    images = (np.int64(own.ctypes.data) + CHUNK - 1) // CHUNK * CHUNK
    row, last = task * G[ROWS_A_TASK], min((task + 1) * G[ROWS_A_TASK], G[M])
    while row < last:
        image = row // G[OUT_HEIGHT]
        top = row - image * G[OUT_HEIGHT]
        rows = min(together, last - row, G[OUT_HEIGHT] - top)
        source = image * G[IMAGE_HEIGHT] + top * stride
        for each in range((rows - 1) * stride + seen):
            pad_row(G, x, G[ZERO], images + each * row_step, source + each)
        for each in range(rows):
            sum_row(G, images + each * stride * row_step, W_, begin, line, S, out, geometry,
                    row + each)  # fmt: skip
        row += rows
    keep_alive(factors)
    keep_alive(sums)
    keep_alive(own)
    return 0


def depthwise_tasks(columns: int, quads: int = 0) -> SpecializedKernel:
    """Return the tasks of a depthwise convolution whose windows have so many columns.

    The loop over the usual 3 columns is unrolled. `quads` is the stride, 1 or 2 columns of windows,
    where `depthwise_quads` can compute the sums, else 0.
    """
    known = columns if columns == _USUAL_COLUMNS else 0
    return integer_depthwise_task.specialize(
        spread_weights=spread_weights.specialize(QUADS=bool(quads)),
        pad_row=PADDED_ROW,
        sum_row=sum_row.specialize(
            QUADS=bool(quads), sums_of=depthwise_sums(known), quads_of=depthwise_quads(quads)
        ),
    )


def all_depthwise_kernels() -> Iterator[SpecializedKernel]:
    """Yield the kernels that networks of 8-bit integers need, whatever their sizes."""
    yield from map(depthwise_tasks, (1, _USUAL_COLUMNS))
    if HAS_QUADS:
        yield from (depthwise_tasks(_USUAL_COLUMNS, stride) for stride in (1, 2))
