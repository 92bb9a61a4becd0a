"""The inner loops of depthwise convolutions in LLVM vector code, a lane for each channel."""

from __future__ import annotations

from functools import cache

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import WIDTH, ZERO, VectorEmitter, number
from gptrs_backend_numba.kernels.convolution.direct_ir import (
    Epilogue,
    hidden,
    masked_load,
    masks_of,
)

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

        def place_in(base):
            return lambda p: emit.moved(base, (line, p), (c, 4))

        places = (place_in(base) for base in (out, emit.pointer(residual)))
        last = Epilogue(emit, *own, residual, bounds)
        last.finish(sums, [0] * positions, {0: mask}, *places)

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
        place = emit.moved(start, (b.mul(j, column_step), 1))
        factor = masked_load(emit, emit.moved(factors, (b.mul(j, factor_step), 1)), mask)
        values = [masked_load(emit, emit.moved(place, (step, p)), mask) for p in range(len(sums))]
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
                if column == taps.start or column % _COLUMNS_A_BASE == 0:
                    base = hidden(emit.builder, emit.moved(start, (step, column)))
                    first = column
                place = emit.moved(base, (step, column - first))
                value = masked_load(emit, place, mask)
                for p in range(count):
                    tap = column - stride * p
                    if tap in taps:
                        sums[p] = emit.multiply_add(value, factors[i, tap], sums[p])
        lanes, masks = [0] * count, {0: mask}
        epilogue.finish(sums, lanes, masks, *[lambda p: emit.moved(out, (step, p))] * 2)
        moved = [emit.moved(start, (step, stride * count)) for start in starts]
        return [*moved, emit.moved(out, (step, count))]

    return body
