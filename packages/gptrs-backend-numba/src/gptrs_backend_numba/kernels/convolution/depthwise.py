"""Kernels of depthwise convolutions: any window, and windows of 3x3 a register of channels at once.

All offsets and steps are in bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH, ZERO, VectorEmitter, number
from gptrs_backend_numba.kernels.convolution.direct import (
    Epilogue,
    hidden,
    masked_load,
    masks_of,
)
from gptrs_backend_numba.kernels.convolution.job import (
    ACTIVATION,
    BOUNDS,
    DEPTHWISE_FIELDS,
    RESIDUAL,
    SCALE,
    SHIFT,
    positions,
)

# The inner loops of depthwise convolutions in LLVM vector code, a lane for each channel.


_SIDE = 3
"""The side of the window of `depthwise_line`."""
_AT_ONCE = 4
"""Positions that `depthwise_line` computes side by side: they share columns of the image."""
_COLUMNS_A_BASE = 3
"""Columns whose addresses are a base and one or two steps, which x86 adds for nothing."""


@cache
def depthwise(positions: int, stride: int = 0, taps: int = 0):
    """Intrinsic: `positions` neighbours in a row of a depthwise convolution, some channels.

    If `taps` are given, they are all columns of a window without dilation, and positions are
    `stride` apart: each number of the image is then loaded once for all positions. The order of
    the sums is the same.

    Arguments: the address of the first tap of the first position, the bytes between positions,
    between rows of taps, how many of these, between taps of a row, how many; the address of the
    weights of the first tap, the bytes from one row of taps to the next (one tap follows another);
    how many channels, and the bytes of all; the rest as in `conv_tile`.
    """

    @named_intrinsic(f"depthwise_{positions}_{stride}_{taps}")
    def micro_kernel(
        typing_context, x, step, row_step, rows, column_step, columns, weight, weight_row,
        channels, line,
        scale, shift, residual, bounds, out,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            _emit_neighbours(VectorEmitter(builder), (positions, stride, taps), arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 15), generate

    return micro_kernel


def _emit_neighbours(emit, kind, arguments):
    """Emit the code of `depthwise`, a register of channels after another."""
    builder = emit.builder
    positions, _, taps = kind
    x, step, row_step, rows, column_step, columns, weight, weight_row, *tail = arguments
    channels, line, scale, shift, residual, bounds, out = tail
    x, weight, scale, shift, bounds, out = (
        emit.pointer(address) for address in (x, weight, scale, shift, bounds, out)
    )

    def block(c, mask):
        def tap_row(i, sums):
            start = emit.moved(x, (builder.mul(i, row_step), 1), (c, 4))
            factors = emit.moved(weight, (builder.mul(i, weight_row), 1), (c, 4))
            sides = (start, column_step), (factors, line), mask
            if taps:
                return _whole_row(emit, kind, sums, *sides)
            return emit.loop(columns, 1, sums, _tap(emit, step, *sides))

        sums = emit.loop(rows, 1, [ZERO] * positions, tap_row)
        own = (emit.moved(pointer, (c, 4)) for pointer in (scale, shift))

        def address_in(base):
            return lambda p: emit.moved(base, (line, p), (c, 4))

        addresses = (address_in(base) for base in (out, emit.pointer(residual)))
        last = Epilogue(emit, *own, residual, bounds)
        last.finish(sums, [0] * positions, {0: mask}, *addresses)

    def body(c, _):
        for (mask,) in masks_of(emit, builder.sub(channels, c)):
            block(c, mask)
        return []

    emit.loop(channels, WIDTH, [], body)


def _tap(emit, step, image, weight, mask):
    """Return the body of a loop over the taps of a row, `step` between positions."""
    b = emit.builder
    (start, column_step), (factors, factor_step) = image, weight

    def tap(j, sums):
        address = emit.moved(start, (b.mul(j, column_step), 1))
        factor = masked_load(emit, emit.moved(factors, (b.mul(j, factor_step), 1)), mask)
        values = [masked_load(emit, emit.moved(address, (step, p)), mask) for p in range(len(sums))]
        return [
            emit.multiply_add(value, factor, added)
            for value, added in zip(values, sums, strict=True)
        ]

    return tap


def _whole_row(emit, kind, sums, image, weight, mask):
    """Add a row of taps to the sums; `image` and `weight` are pointers and steps of columns."""
    positions, stride, taps = kind
    (start, step), (factors, factor_step) = image, weight
    loaded = [masked_load(emit, emit.moved(factors, (factor_step, j)), mask) for j in range(taps)]
    sums = list(sums)
    for column in range(stride * (positions - 1) + taps):
        if column % _COLUMNS_A_BASE == 0:
            base = hidden(emit.builder, emit.moved(start, (step, column)))
        value = masked_load(emit, emit.moved(base, (step, column % _COLUMNS_A_BASE)), mask)
        for p in range(positions):
            tap = column - stride * p
            if 0 <= tap < taps:
                sums[p] = emit.multiply_add(value, loaded[tap], sums[p])
    return sums


@cache
def depthwise_line(stride: int, top: int, bottom: int):
    """Intrinsic: a row of the result of a 3x3 window, for the channels of one register.

    Rows of taps from `top` to `bottom` are within the image. Arguments: the address of the first
    tap of the first position, there or not; the bytes between rows and between columns, these also
    of the result; the address of the weights; whether the first position lacks its left column,
    how many follow that lack none, whether one follows that lacks its right column; how many
    channels are left; addresses of the scale, the shift, the two bounds and the result.
    """

    @named_intrinsic(f"depthwise_line_{stride}_{top}_{bottom}")
    def micro_kernel(
        typing_context, x, row_step, step, weight, left, count, right, channels,
        scale, shift, bounds, out,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            x, row_step, step, weight, left, count, right, channels, *tail = arguments
            emit = VectorEmitter(builder)
            x, weight, scale, shift, bounds, out = (
                emit.pointer(address) for address in (x, weight, *tail)
            )
            operands = x, row_step, step, weight, left, count, right
            for (mask,) in masks_of(emit, channels):
                epilogue = Epilogue(emit, scale, shift, number(0), bounds)
                _emit_line(emit, (stride, range(top, bottom)), operands, mask, epilogue, out)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return micro_kernel


def _emit_line(emit, kind, operands, mask, epilogue, out):
    """Emit the code of `depthwise_line` for a mask; `kind` is (stride, rows of taps)."""
    builder = emit.builder
    stride, rows = kind
    x, row_step, step, weight, left, count, right = operands
    factors = {
        (i, j): masked_load(emit, emit.moved(weight, (step, _SIDE * i + j)), mask)
        for i in rows
        for j in range(_SIDE)
    }

    def positions(count, taps):
        return _positions(emit, (count, stride, taps), factors, step, mask, epilogue)

    state = [*(emit.moved(x, (row_step, i)) for i in rows), out]
    state = emit.loop(left, 1, state, positions(1, range(1, _SIDE)))
    rest = builder.and_(count, number(_AT_ONCE - 1))
    whole = builder.sub(count, rest)
    state = emit.loop(whole, _AT_ONCE, state, positions(_AT_ONCE, range(_SIDE)))
    state = emit.loop(rest, 1, state, positions(1, range(_SIDE)))
    emit.loop(right, 1, state, positions(1, range(_SIDE - 1)))


def _positions(emit, kind, factors, step, mask, epilogue):
    """Return the body of a loop over positions: `kind` is (positions at once, stride, taps)."""
    count, stride, taps = kind

    def body(_, state):
        *starts, out = state
        sums = [ZERO] * count
        for i, start in zip(sorted({i for i, _ in factors}), starts, strict=True):
            for column in range(taps.start, stride * (count - 1) + taps.stop):
                # Hidden, as in `direct`: else LLVM adds up addresses where it could multiply.
                if column == taps.start or column % _COLUMNS_A_BASE == 0:
                    base = hidden(emit.builder, emit.moved(start, (step, column)))
                    first = column
                address = emit.moved(base, (step, column - first))
                value = masked_load(emit, address, mask)
                for p in range(count):
                    tap = column - stride * p
                    if tap in taps:
                        sums[p] = emit.multiply_add(value, factors[i, tap], sums[p])
        lanes, masks = [0] * count, {0: mask}
        epilogue.finish(sums, lanes, masks, *[lambda p: emit.moved(out, (step, p))] * 2)
        moved = [emit.moved(start, (step, stride * count)) for start in starts]
        return [*moved, emit.moved(out, (step, count))]

    return body


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
                target = (row * G[OW] + position) * line + c
                residual = G[RESIDUAL]
                if residual:
                    residual += target
                target += out
                at = source + (left + j * G[DW]) * line
                factor = weight + (i * G[KW] + j) * line + c
                if count == 8:
                    depthwise_8(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, target)  # fmt: skip
                elif count == 4:
                    depthwise_4(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, target)  # fmt: skip
                else:
                    depthwise_1(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, bounds, target)  # fmt: skip
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
            address = out + row * G[OW] * line + c
            if top < 0:
                first_line(source, G[W] * line, line, factors, left, count, right,
                           channels, scale, shift, bounds, address)  # fmt: skip
            elif top + 3 > G[H]:
                last_line(source, G[W] * line, line, factors, left, count, right,
                          channels, scale, shift, bounds, address)  # fmt: skip
            else:
                inner_line(source, G[W] * line, line, factors, left, count, right,
                           channels, scale, shift, bounds, address)  # fmt: skip
            if G[ACTIVATION]:
                call_compiled(G[ACTIVATION], address, G[OW], line, min(WIDTH, channels),
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
