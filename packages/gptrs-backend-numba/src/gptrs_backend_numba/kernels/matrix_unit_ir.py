"""Products of f32 on the matrix unit of the processor (AMX), which multiplies bf16.

A f32 is the sum of three bf16: itself rounded, what is left rounded, and the rest, which is exact.
Of the nine products of such parts the six largest count, less than 2^-24 of the whole is left out,
and the unit adds them up in f32. What was bf16 before is one part.

A step covers `STEP` values of k. Of each part of each side it takes two tiles of 16 rows of 64
bytes: rows of the left side, or pairs of rows of a panel of the right one. A pair is k and k + 16,
so that two vectors of f32 make one of bf16 by shifts alone.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.kernels.deferred import intrinsic, types
from gptrs_backend_numba.kernels.emitter import (
    I8,
    I32,
    I64,
    VECTOR,
    WIDTH,
    ZERO,
    Emitter,
    number,
    words,
)
from gptrs_backend_numba.kernels.gemm_ir import PANEL
from gptrs_backend_numba.kernels.machine import call_llvm

STEP = 32
"""Values of k that are multiplied at once."""
UNIT_ROWS = 32
"""Rows of the left side in a block of sums; its columns are those of a panel."""
TILE_BYTES = 1024
PART_BYTES = 2 * TILE_BYTES
"""Of a step of one part of one side."""
MOST_PARTS = 3
"""Of a number."""
ASKS = 16
"""Cache lines that each step asks the memory for."""

_WORDS = ir.VectorType(I32, WIDTH)
_VOID = ir.VoidType()
_LEFT, _RIGHT = 4, 6
"""The first of the two registers for tiles of a side; those before hold sums."""


_QUARTERS = [(i, j) for i in range(2) for j in range(2)]
"""Of a block of sums: halves of its rows, and of its columns."""


def _register(register):
    return ir.Constant(I8, register)


def _load(emit, register, pointer, step):
    call_llvm(emit.builder, "llvm.x86.tileloadd64", _VOID, [_register(register), pointer, step])


def _store(emit, register, pointer, step):
    call_llvm(emit.builder, "llvm.x86.tilestored64", _VOID, [_register(register), pointer, step])


@intrinsic
def use_matrix_unit(typing_context):
    """Give all eight registers of this thread 16 rows of 64 bytes."""

    def generate(context, builder, signature, arguments):
        configuration = [1] + 15 * [0] + 8 * [64, 0] + 16 * [0] + 8 * [16] + 8 * [0]
        content = ir.Constant(ir.ArrayType(I8, 64), configuration)
        with builder.goto_entry_block():
            memory = builder.alloca(content.type)
        builder.store(content, memory)
        place = builder.bitcast(memory, ir.PointerType(I8))
        call_llvm(builder, "llvm.x86.ldtilecfg", _VOID, [place])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def leave_matrix_unit(typing_context):
    """Say that the registers hold nothing any more, which makes switches of threads cheaper."""

    def generate(context, builder, signature, arguments):
        call_llvm(builder, "llvm.x86.tilerelease", _VOID, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def begin_sums(typing_context, sums, rows, start, residual, step):
    """Make `rows` rows of sums a row of `PANEL` numbers plus others, `step` bytes apart."""

    def generate(context, builder, signature, arguments):
        sums, rows, start, residual, step = arguments
        emit = Emitter(builder)
        sums, start, residual = (emit.pointer(x) for x in (sums, start, residual))
        sides = range(0, 4 * PANEL, 4 * WIDTH)
        starts = [emit.load(emit.moved(start, side), VECTOR, 4) for side in sides]

        def body(k, state):
            sums, residual = state
            for side, value in zip(sides, starts, strict=True):
                other = emit.load(emit.moved(residual, side), VECTOR, 4)
                emit.store(builder.fadd(value, other), emit.moved(sums, side))
            return [emit.moved(sums, 4 * PANEL), emit.moved(residual, (step, 1))]

        emit.loop(rows, 1, [sums, residual], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _path(left_parts, right_parts):
    """The pairs of parts that count, the smallest first; parts of the left side change least."""
    pairs = []
    for i in reversed(range(left_parts)):
        those = [(i, j) for j in range(right_parts) if i + j < MOST_PARTS]
        turned = pairs and pairs[-1][1] == those[-1][1]
        pairs += reversed(those) if turned else those
    return pairs


def multiply_block(left_parts: int, right_parts: int):
    """Intrinsic: adds to a block of `UNIT_ROWS` x `PANEL` sums the products of `count` steps.

    Arguments: the addresses of the parts of both sides and of the sums, f32; the count; where to
    store the new sums, and the bytes from one row to the next; where to ask the memory for `ASKS`
    lines in each step, and the bytes from one of them to the next.
    """
    path = _path(left_parts, right_parts)

    @intrinsic
    def multiply(typing_context, left, right, sums, count, out, out_step, ahead, pace):
        def generate(context, builder, signature, arguments):
            left, right, sums, count, out, out_step, ahead, pace = arguments
            emit = Emitter(builder)
            left, right, sums, out, ahead = (
                emit.pointer(x) for x in (left, right, sums, out, ahead)
            )
            for register, (i, j) in enumerate(_QUARTERS):
                place = emit.moved(sums, 4 * PANEL * 16 * i + 64 * j)
                _load(emit, register, place, number(4 * PANEL))

            def body(k, state):
                left, right, ahead = state
                last = None
                for at, pair in enumerate(path):
                    _take(emit, left, _LEFT, pair[0], last and last[0])
                    _take(emit, right, _RIGHT, pair[1], last and last[1])
                    _multiply(emit)
                    for _ in range(ASKS * at // len(path), ASKS * (at + 1) // len(path)):
                        emit.prefetch(ahead, near=2)
                        ahead = emit.moved(ahead, (pace, 1))
                    last = pair
                left = emit.moved(left, PART_BYTES * left_parts)
                return [left, emit.moved(right, PART_BYTES * right_parts), ahead]

            emit.loop(count, 1, [left, right, ahead], body)
            for register, (i, j) in enumerate(_QUARTERS):
                _store(emit, register, emit.moved(out, (out_step, 16 * i), 64 * j), out_step)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return multiply


def _take(emit, pointer, register, part, held):
    """Load a part of a step of one side, unless it is the one that the registers hold."""
    for half in range(2) if part != held else ():
        place = emit.moved(pointer, PART_BYTES * part + TILE_BYTES * half)
        _load(emit, register + half, place, number(64))


def _multiply(emit):
    for i, j in _QUARTERS:
        registers = [_register(x) for x in (2 * i + j, _LEFT + i, _RIGHT + j)]
        call_llvm(emit.builder, "llvm.x86.tdpbf16ps", _VOID, registers)


def _parts(emit, value, count, odd):
    """The bits of the parts of a vector of f32; and `odd`, NaN wherever it is not finite."""
    b = emit.builder
    found = []
    for _ in range(count - 1):
        bits = b.add(b.bitcast(value, _WORDS), words(0x8000))
        found.append(b.and_(bits, words(-0x10000)))
        value = b.fsub(value, b.bitcast(found[-1], VECTOR))
        odd = emit.multiply_add(value, ZERO, odd) if len(found) == 1 else odd
    odd = emit.multiply_add(value, ZERO, odd) if count == 1 else odd
    return [*found, b.bitcast(value, _WORDS)], odd


def _split_pair(emit, first, second, target, count, odd):
    """Store the parts of two vectors of f32, `PART_BYTES` apart, each pair of them as bf16."""
    b = emit.builder
    low, odd = _parts(emit, first, count, odd)
    high, odd = _parts(emit, second, count, odd)
    for part, (x, y) in enumerate(zip(low, high, strict=True)):
        pair = b.or_(b.lshr(x, words(16)), b.and_(y, words(-0x10000)))
        emit.store(b.bitcast(pair, VECTOR), emit.moved(target, PART_BYTES * part))
    return odd


def _any_nan(builder, value):
    """1 if there is a NaN in a vector, else 0."""
    lanes = builder.fcmp_unordered("uno", value, value)
    found = builder.bitcast(lanes, ir.IntType(WIDTH))
    return builder.zext(builder.icmp_unsigned("!=", found, ir.Constant(found.type, 0)), I64)


def split_row(parts: int):
    """Intrinsic: `count` steps of a row of the left side, contiguous, f32, in parts.

    Arguments: the address of the row and of its place in the first tile; the count. The result is
    1 if there is a number that is infinite, NaN, or as good as infinite.
    """

    @intrinsic
    def split(typing_context, source, target, count):
        def generate(context, builder, signature, arguments):
            source, target, count = arguments
            emit = Emitter(builder)

            def body(k, state):
                source, target, odd = state
                pair = [emit.load(emit.moved(source, 64 * half), VECTOR, 4) for half in range(2)]
                odd = _split_pair(emit, *pair, target, parts, odd)
                return [emit.moved(source, 4 * STEP), emit.moved(target, PART_BYTES * parts), odd]

            starts = [emit.pointer(source), emit.pointer(target), ZERO]
            return _any_nan(builder, emit.loop(count, 1, starts, body)[2])

        return types.int64(*[types.int64] * 3), generate

    return split


def split_panel(dtype: str, parts: int):
    """Intrinsic: `count` steps of a panel of the right side, "f32", "bf16" or "f16", in parts.

    Arguments: the address of the first row, of the parts, and the count. The result is as that of
    `split_row`.
    """
    row = PANEL * (4 if dtype == "f32" else 2)

    @intrinsic
    def split(typing_context, source, target, count):
        def generate(context, builder, signature, arguments):
            source, target, count = arguments
            emit = Emitter(builder)

            def pair(k, state):
                source, target, odd = state
                for half in range(2):
                    places = [emit.moved(source, row * far + row // 2 * half) for far in (0, 16)]
                    values = [emit.floats(place, dtype) for place in places]
                    place = emit.moved(target, TILE_BYTES * half)
                    odd = _split_pair(emit, *values, place, parts, odd)
                return [emit.moved(source, row), emit.moved(target, 64), odd]

            def body(k, state):
                source, target, odd = emit.loop(number(16), 1, state, pair)
                source = emit.moved(source, 16 * row)
                return [source, emit.moved(target, PART_BYTES * parts - TILE_BYTES), odd]

            starts = [emit.pointer(source), emit.pointer(target), ZERO]
            return _any_nan(builder, emit.loop(count, 1, starts, body)[2])

        return types.int64(*[types.int64] * 3), generate

    return split
