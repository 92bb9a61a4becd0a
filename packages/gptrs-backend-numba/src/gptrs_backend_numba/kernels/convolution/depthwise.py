"""Kernels of depthwise convolutions: any window, and windows of 3x3 a register of channels at once.

All offsets and steps are in bytes.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.convolution.depthwise_ir import depthwise, depthwise_line
from gptrs_backend_numba.kernels.convolution.geometry import (
    ACTIVATION,
    BOUNDS,
    DEPTHWISE_FIELDS,
    RESIDUAL,
    SCALE,
    SHIFT,
    positions,
)

H, W, C, OH, OW = positions(DEPTHWISE_FIELDS, "H W C OH OW")
KH, KW, SH, SW, PT, PL, DH, DW = positions(DEPTHWISE_FIELDS, "KH KW SH SW PT PL DH DW")
ITEMS, ITEMS_A_TASK, CHANNELS_AT_ONCE, FIRST, LAST = positions(
    DEPTHWISE_FIELDS, "ITEMS ITEMS_A_TASK CHANNELS_AT_ONCE FIRST LAST"
)


@kernel
def depthwise_task(x, weight, out, geometry, task, *, depthwise_1, depthwise_4, depthwise_8):
    """Compute some rows; taps outside of the image are left out."""
    G = pointer(geometry, np.int64)
    line, wide = 4 * G[C], G[LAST] - G[FIRST]
    step, column, row_step = line * G[SW], line * G[DW], line * G[W] * G[DH]
    begin, end = task * G[ITEMS_A_TASK], min((task + 1) * G[ITEMS_A_TASK], G[ITEMS])
    # Some channels at a time: of these the nearest cache keeps the rows of a window for the next
    # row of results.
    for channel in range(0, G[C], G[CHANNELS_AT_ONCE]):
        channels, c = min(G[CHANNELS_AT_ONCE], G[C] - channel), 4 * channel
        scale, shift, bounds = G[SCALE] + c, G[SHIFT] + c, G[BOUNDS]
        for row in range(begin, end):
            image = row // G[OH]
            top = (row - image * G[OH]) * G[SH] - G[PT]
            i = max(0, -(top // G[DH]))
            rows = min(G[KH], (G[H] - top + G[DH] - 1) // G[DH]) - i
            source = x + (image * G[H] + top + i * G[DH]) * G[W] * line + c
            position = 0
            while position < G[OW]:
                j, columns, count = np.int64(0), G[KW], 1
                inside = G[FIRST] <= position < G[LAST]
                if inside:  # the last ones are computed with some that are there: the same bits
                    count = 8 if wide >= 8 else 4 if wide >= 4 else 1
                    position = min(position, G[LAST] - count)
                left = position * G[SW] - G[PL]
                if not inside:
                    j = max(0, -(left // G[DW]))
                    columns = min(G[KW], (G[W] - left + G[DW] - 1) // G[DW]) - j
                place = (row * G[OW] + position) * line + c
                residual = G[RESIDUAL]
                if residual:
                    residual += place
                place += out
                at = source + (left + j * G[DW]) * line
                factor = weight + (i * G[KW] + j) * line + c
                if count == 8:
                    depthwise_8(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, place)  # fmt: skip
                elif count == 4:
                    depthwise_4(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, place)  # fmt: skip
                else:
                    depthwise_1(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, place)  # fmt: skip
                position += count
            if G[ACTIVATION]:
                call_compiled(G[ACTIVATION], out + row * G[OW] * line + c, G[OW], line, channels,
                              0, 0, 0, 0, 0)  # fmt: skip
    return 0


@kernel
def lines_task(x, weight, out, geometry, task, *, STRIDE, first_line, inner_line, last_line):
    """Compute some rows with windows of 3x3, a register of channels at a time."""
    G = pointer(geometry, np.int64)
    line = 4 * G[C]
    begin, end = task * G[ITEMS_A_TASK], min((task + 1) * G[ITEMS_A_TASK], G[ITEMS])
    left, count, right = G[FIRST], G[LAST] - G[FIRST], G[OW] - G[LAST]
    for channel in range(0, G[C], WIDTH):
        c = 4 * channel
        channels, factors = G[C] - channel, weight + c
        scale, shift, bounds = G[SCALE] + c, G[SHIFT] + c, G[BOUNDS]
        for row in range(begin, end):
            image = row // G[OH]
            top = (row - image * G[OH]) * STRIDE - G[PT]
            source = x + ((image * G[H] + top) * G[W] - G[PL]) * line + c
            place = out + row * G[OW] * line + c
            if top < 0:
                first_line(source, G[W] * line, line, factors, left, count, right,
                           channels, scale, shift, bounds, place)  # fmt: skip
            elif top + 3 > G[H]:
                last_line(source, G[W] * line, line, factors, left, count, right,
                          channels, scale, shift, bounds, place)  # fmt: skip
            else:
                inner_line(source, G[W] * line, line, factors, left, count, right,
                           channels, scale, shift, bounds, place)  # fmt: skip
            if G[ACTIVATION]:
                call_compiled(G[ACTIVATION], place, G[OW], line, min(WIDTH, channels),
                              0, 0, 0, 0, 0)  # fmt: skip
    return 0


def any_window(stride: int = 0, taps: int = 0) -> SpecializedKernel:
    """Return the kernel for any window, or for windows of `taps` columns `stride` apart."""
    return depthwise_task.specialize(
        depthwise_1=depthwise(1),
        depthwise_4=depthwise(4, stride, taps),
        depthwise_8=depthwise(8, stride, taps),
    )


def window_3x3(stride: int) -> SpecializedKernel:
    """Return the kernel for windows of 3x3, `stride` positions apart."""
    return lines_task.specialize(
        STRIDE=stride,
        first_line=depthwise_line(stride, 1, 3),  # the first row of the window is padding
        inner_line=depthwise_line(stride, 0, 3),
        last_line=depthwise_line(stride, 0, 2),
    )
