"""Products of f32 on AMX, the instructions of the processor that multiply tiles of bf16.

Of the nine products of the parts of two numbers, see `bf16x3_ir`, the six largest count, which
leaves out 2^-22 of the whole at most, and AMX adds them up in f32.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    I8,
    I64,
    VECTOR,
    WIDTH,
    VectorEmitter,
    number,
)
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    PAIRS,
    PART_BYTES,
    STEPS,
    TILE_BYTES,
    row_bytes,
    split_pair,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

AMX_ROWS = 32
"""Rows of the left side in a block of sums; its columns are those of a panel."""
PAIRS_A_STEP = 4
"""Pairs of rows of the next block that are split into parts while a step is multiplied: 2, 4 and 8
gave 218, 264 and 237 GFLOP/s at 128 rows."""
PAIRS_WITH_TWO_TILES, PAIRS_WITH_ONE_TILE = PAIRS // STEPS // 2, PAIRS // STEPS
"""The same where a block is multiplied with few tiles: all pairs, so that the whole of the block
after the next one is prefetched. From memory 32 rows take 0.8 of the time, 64 rows 0.9."""

VOID = ir.VoidType()
"""The type that AMX instructions return."""
_LEFT, _RIGHT = 4, 6
"""The first of the two registers for tiles of a side; those before hold sums."""


def tile_register(register):
    """Return the operand of an instruction that names a tile register."""
    return ir.Constant(I8, register)


def load_tile(emit, register, pointer, step, hint=""):
    """Load the rows of a register, `step` bytes apart; `hint` is "t1" for what is read once."""
    name = f"llvm.x86.tileloadd{hint}64"
    call_llvm(emit.builder, name, VOID, [tile_register(register), pointer, step])


def store_tile(emit, register, pointer, step):
    """Store the rows of a register, `step` bytes apart."""
    call_llvm(emit.builder, "llvm.x86.tilestored64", VOID, [tile_register(register), pointer, step])


@intrinsic
def configure_amx(typing_context):
    """Configure all eight tile registers of this thread as 16 rows of 64 bytes."""

    def generate(context, builder, signature, arguments):
        configuration = [1] + 15 * [0] + 8 * [64, 0] + 16 * [0] + 8 * [16] + 8 * [0]
        content = ir.Constant(ir.ArrayType(I8, 64), configuration)
        with builder.goto_entry_block():
            memory = builder.alloca(content.type)
        builder.store(content, memory)
        place = builder.bitcast(memory, ir.PointerType(I8))
        call_llvm(builder, "llvm.x86.ldtilecfg", VOID, [place])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def release_amx(typing_context):
    """Mark the registers as empty, which makes switches of threads cheaper."""

    def generate(context, builder, signature, arguments):
        call_llvm(builder, "llvm.x86.tilerelease", VOID, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def begin_sums(typing_context, sums, rows, start, residual, step):
    """Make `rows` rows of sums a row of `PANEL` numbers plus others, `step` bytes apart."""

    def generate(context, builder, signature, arguments):
        sums, rows, start, residual, step = arguments
        emit = VectorEmitter(builder)
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


def parts_to_multiply(left_parts, right_parts):
    """Return the pairs of parts that count, those of the smallest parts of the left side first.

    From one pair to the next one side stays in its registers.
    """
    pairs = []
    for i in reversed(range(left_parts)):
        held = pairs[-1][1] if pairs else 0
        those = [(i, j) for j in range(right_parts) if i + j < MOST_PARTS]
        pairs += sorted(those, key=lambda pair: pair[1] != held)
    return pairs


def _take(emit, sides, register, part, half):
    """Load a half of a part of a step of a side: rows of the left one, columns of the right one."""
    pointer = sides[register]
    sizes = (PART_BYTES, TILE_BYTES) if register == _LEFT else (BLOCK_BYTES, BLOCK_BYTES // 2)
    place = emit.moved(pointer, sizes[0] * part + sizes[1] * half)
    # The left side is read once a block: the hint keeps it out of the L1 cache, where the block of
    # the panel is to stay, and makes products 1 to 6 % faster.
    load_tile(emit, register + half, place, number(64), "t1" if register == _LEFT else "")


def emit_step(emit, left, right, path, between):
    """Emit the products of all pairs of parts; `between(n)` emits what follows the nth.

    What comes next is loaded as soon as nothing needs the register any more.
    """
    sides = {_LEFT: left, _RIGHT: right}
    for register, part in zip(sides, path[0], strict=True):
        for half in range(2):
            _take(emit, sides, register, part, half)
    done = 0
    for pair, after in pairwise([*path, path[-1]]):
        turns = pair[1] != after[1]
        for half in range(2):
            for other in range(2):
                i, j = (other, half) if turns else (half, other)
                registers = [tile_register(x) for x in (2 * i + j, _LEFT + i, _RIGHT + j)]
                call_llvm(emit.builder, "llvm.x86.tdpbf16ps", VOID, registers)
                between(done)
                done += 1
            if after != pair:
                _take(emit, sides, _RIGHT if turns else _LEFT, after[turns], half)


def _emit_block(builder, arguments, path, pairs, between):
    """Emit the code of `multiply_block`; `between` emits what follows each product."""
    emit = VectorEmitter(builder)
    left, right, sums, count, out, out_step = arguments
    left, right, sums, out = (emit.pointer(x) for x in (left, right, sums, out))
    quarters = [(i, j) for i in range(2) for j in range(2)]
    for register, (i, j) in enumerate(quarters):
        place = emit.moved(sums, 4 * PANEL * 16 * i + 64 * j)
        load_tile(emit, register, place, number(4 * PANEL))
    left_bytes = PART_BYTES * (1 + max(i for i, _ in path))

    def body(k, state):
        left, right, *pairs = state
        emit_step(emit, left, right, path, lambda done: between(emit, done, pairs))
        return [emit.moved(left, left_bytes), emit.moved(right, TILE_BYTES), *pairs]

    emit.loop(count, 1, [left, right, *pairs], body)
    for register, (i, j) in enumerate(quarters):
        store_tile(emit, register, emit.moved(out, (out_step, 16 * i), 64 * j), out_step)


@cache
def multiply_block(left_parts: int, right_parts: int):
    """Intrinsic: adds to a block of `AMX_ROWS` x `PANEL` sums the products of `count` steps.

    Arguments: the addresses of the parts of both sides and of the sums, f32; the count; where to
    store the new sums, and the bytes from one row to the next.
    """
    path = parts_to_multiply(left_parts, right_parts)

    @named_intrinsic(f"multiply_block_{left_parts}_{right_parts}")
    def multiply(typing_context, left, right, sums, count, out, out_step):
        def generate(context, builder, signature, arguments):
            _emit_block(builder, arguments, path, [], lambda *_: None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return multiply


@cache
def multiply_and_split(left_parts: int, right_parts: int, dtype: str, pairs_a_step: int):
    """Intrinsic: as `multiply_block`, and meanwhile splits another block of a panel into parts.

    Each step splits `pairs_a_step` pairs of rows; when there are none left, the last one again.
    Further arguments: the address of that block, of numbers of type `dtype`, and of its parts; of
    another block that is prefetched; and the first pair.
    """
    path = parts_to_multiply(left_parts, right_parts)
    slots = [4 * len(path) * (2 * i + 1) // (2 * pairs_a_step) for i in range(pairs_a_step)]
    size = 2 * row_bytes(dtype)

    @named_intrinsic(f"multiply_and_split_{left_parts}_{right_parts}_{dtype}_{pairs_a_step}")
    def multiply(typing_context, left, right, sums, count, out, out_step,
                 source, target, prefetch, first):  # fmt: skip
        def generate(context, builder, signature, arguments):
            *own, source, target, prefetch, first = arguments
            emit = VectorEmitter(builder)
            source, target, prefetch = (emit.pointer(x) for x in (source, target, prefetch))

            def between(emit, done, pairs):
                for _ in range(slots.count(done)):
                    pair = pairs[0]
                    place = emit.moved(target, (pair, 64))
                    split_pair(emit, emit.moved(source, (pair, size)), place, dtype, right_parts)
                    for line in range(0, size, 64):
                        emit.prefetch(emit.moved(prefetch, (pair, size), line), near=2)
                    more = builder.icmp_signed("<", pair, number(PAIRS - 1))
                    pairs[0] = builder.select(more, builder.add(pair, number(1)), pair)

            _emit_block(builder, own, path, [first], between)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return multiply


@intrinsic
def has_nan(typing_context, sums, step):
    """Return 1 if a NaN is in a block of `AMX_ROWS` rows of `PANEL` sums, `step` bytes apart."""

    def generate(context, builder, signature, arguments):
        sums, step = arguments
        emit = VectorEmitter(builder)
        lanes = ir.IntType(WIDTH)

        def body(k, state):
            place, found = state
            row = (emit.load(emit.moved(place, side), VECTOR, 4) for side in (0, 64))
            unordered = builder.bitcast(builder.fcmp_unordered("uno", *row), lanes)
            return [emit.moved(place, (step, 1)), builder.or_(found, unordered)]

        starts = [emit.pointer(sums), ir.Constant(lanes, 0)]
        found = emit.loop(number(AMX_ROWS), 1, starts, body)[1]
        return builder.zext(builder.icmp_unsigned("!=", found, ir.Constant(lanes, 0)), I64)

    return types.int64(types.int64, types.int64), generate
