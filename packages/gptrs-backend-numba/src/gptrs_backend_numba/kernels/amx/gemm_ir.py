"""Products of f32 on AMX, the instructions of the processor that multiply tiles of bf16.

Of the nine products of the parts of two numbers, see `bf16x3_ir`, the six largest count, which
leaves out 2^-22 of the whole at most, and AMX adds them up in f32.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    I8,
    I16,
    I32,
    I64,
    VECTOR,
    WIDTH,
    VectorEmitter,
    number,
    words,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import PAIR_BYTES, STEP_BYTES
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

# Numbers as sums of bf16, the parts that AMX multiplies, in the order in which it reads them.
#
# A f32 is the sum of three bf16: itself rounded, what is left cut off, and the rest, which is
# exact. What was f16 before is the sum of two, what was bf16 is one.
#
# A step covers `STEP` values of k. Of each part of each side it takes two tiles of 16 rows of 64
# bytes: rows of the left side, or pairs of rows of a panel of the right one. A block of a panel is
# `STEPS` steps; of each part, and of each half of its columns, the tiles of all steps lie together.


STEP = 32
"""Values of k that are multiplied at once."""
STEPS = 4
"""In a block of a panel: two of them, in parts, are as large as the L1 cache."""
TILE_BYTES = 1024
PART_BYTES = 2 * TILE_BYTES
"""Bytes of a step of one part of the left side."""
BLOCK_BYTES = STEPS * PART_BYTES
"""Bytes of a block of one part of a panel."""
MOST_PARTS = 3
"""Most parts of a number."""
PAIRS = STEPS * STEP // 2
"""Pairs of rows of a block of a panel."""

_WORDS = ir.VectorType(I32, WIDTH)
_HALVES = ir.VectorType(I16, 2 * WIDTH)


def row_bytes(dtype: str) -> int:
    """Return the bytes of a row of a panel of numbers of a type."""
    return PANEL * (4 if dtype == "f32" else 2)


def bits_of_parts(emit, value, count, rounds=True):
    """Return the bits of the parts of a vector of f32: their upper halves.

    NaN and what is as good as infinite have a part that is NaN, if there is more than one. Where
    the first part is cut off as the others are, not rounded, the largest numbers have parts.
    """
    b = emit.builder
    found = []
    for part in range(count - 1):
        bits = b.bitcast(value, _WORDS)
        rounded = b.add(bits, words(0x8000)) if rounds and part == 0 else bits
        found.append(b.and_(rounded, words(-0x10000)))
        value = b.fsub(value, b.bitcast(found[-1], VECTOR))
    return [*found, b.bitcast(value, _WORDS)]


def paired_parts(emit, low, high):
    """Yield the parts of two vectors, given as bits: two bf16 a word, as vectors of f32."""
    b = emit.builder
    for x, y in zip(low, high, strict=True):
        word = b.or_(b.lshr(x, words(16)), b.and_(y, words(-0x10000)))
        yield b.bitcast(word, VECTOR)


def split_pair(emit, source, target, dtype, parts):
    """Store the parts of a pair of rows of a panel, each pair of numbers as two bf16."""
    row = row_bytes(dtype)
    for half in range(2):
        pair = (emit.moved(source, row * k + row // 2 * half) for k in range(2))
        both = (bits_of_parts(emit, emit.floats(address, dtype), parts) for address in pair)
        for part, word in enumerate(paired_parts(emit, *both)):
            address = emit.moved(target, BLOCK_BYTES * part + BLOCK_BYTES // 2 * half)
            emit.store(word, address)


@cache
def split_pairs(dtype: str, parts: int):
    """Intrinsic: the pairs of rows from `first` to `last` of a block of a panel, in parts.

    Arguments: the addresses of the block, of numbers of type `dtype`, and of its parts; the pairs.
    """
    size = 2 * row_bytes(dtype)

    @named_intrinsic(f"split_pairs_{dtype}_{parts}")
    def split(typing_context, source, target, first, last):
        def generate(context, builder, signature, arguments):
            source, target, first, last = arguments
            emit = VectorEmitter(builder)

            def body(k, state):
                source, target = state
                split_pair(emit, source, target, dtype, parts)
                return [emit.moved(source, size), emit.moved(target, 64)]

            source = emit.moved(emit.pointer(source), (first, size))
            target = emit.moved(emit.pointer(target), (first, 64))
            emit.loop(builder.sub(last, first), 1, [source, target], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return split


@cache
def split_row(parts: int):
    """Intrinsic: `count` steps of a row of the left side, contiguous, f32, in parts.

    Arguments: the addresses of the row and of its part of the first tile; the count.
    """
    uppers = ir.Constant(ir.VectorType(I32, 2 * WIDTH), list(range(1, 4 * WIDTH, 2)))

    @named_intrinsic(f"split_row_{parts}")
    def split(typing_context, source, target, count):
        def generate(context, builder, signature, arguments):
            source, target, count = arguments
            emit = VectorEmitter(builder)

            def body(k, state):
                source, target = state
                pair = [emit.load(emit.moved(source, 64 * half), VECTOR, 4) for half in range(2)]
                both = (bits_of_parts(emit, value, parts) for value in pair)
                for part, words_ in enumerate(zip(*both, strict=True)):
                    halves = [builder.bitcast(value, _HALVES) for value in words_]
                    row = builder.shuffle_vector(*halves, uppers)
                    emit.store(builder.bitcast(row, VECTOR), emit.moved(target, PART_BYTES * part))
                return [emit.moved(source, 4 * STEP), emit.moved(target, PART_BYTES * parts)]

            emit.loop(count, 1, [emit.pointer(source), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return split


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
        address = builder.bitcast(memory, ir.PointerType(I8))
        call_llvm(builder, "llvm.x86.ldtilecfg", VOID, [address])
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
    address = emit.moved(pointer, sizes[0] * part + sizes[1] * half)
    # The left side is read once a block: the hint keeps it out of the L1 cache, where the block of
    # the panel is to stay, and makes products 1 to 6 % faster.
    load_tile(emit, register + half, address, number(64), "t1" if register == _LEFT else "")


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
        address = emit.moved(sums, 4 * PANEL * 16 * i + 64 * j)
        load_tile(emit, register, address, number(4 * PANEL))
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
                    address = emit.moved(target, (pair, 64))
                    split_pair(emit, emit.moved(source, (pair, size)), address, dtype, right_parts)
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
            address, found = state
            row = (emit.load(emit.moved(address, side), VECTOR, 4) for side in (0, 64))
            unordered = builder.bitcast(builder.fcmp_unordered("uno", *row), lanes)
            return [emit.moved(address, (step, 1)), builder.or_(found, unordered)]

        starts = [emit.pointer(sums), ir.Constant(lanes, 0)]
        found = emit.loop(number(AMX_ROWS), 1, starts, body)[1]
        return builder.zext(builder.icmp_unsigned("!=", found, ir.Constant(lanes, 0)), I64)

    return types.int64(types.int64, types.int64), generate


# The inner loop of products of bf16 on AMX, whose tiles are read where the packed sides lie.


TILE_ROWS = 16
"""Rows of a register for tiles."""
BLOCK_ROWS = 2 * TILE_ROWS
"""Rows of a block of sums: two registers high, and a panel, two of them, wide."""
_TILE_BYTES = 1024
"""Bytes of a step of the rows of a register of the left side."""
_BF16_LEFT, _BF16_RIGHT = 4, 6
"""The first of the registers of a side; those before hold sums."""


@cache
def multiply_tiles():
    """Intrinsic: adds the products of `count` steps to the sums of 1 to `BLOCK_ROWS` rows.

    Arguments: the number of rows (the left side and the sums have room for a multiple of
    `TILE_ROWS`); and all others of `gptrs_backend_numba.kernels.matmul.bf16_ir.multiply_rows`.
    """

    @named_intrinsic("multiply_tiles_bf16")
    def multiply(typing_context, rows, left, right, count, start, start_step, sums,
                 prefetch, lines):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            tall = builder.icmp_signed(">", wanted, number(TILE_ROWS))
            with builder.if_else(tall) as (two, one):
                with two:
                    _emit_bf16_block(emit, 2, *rest)
                with one:
                    _emit_bf16_block(emit, 1, *rest)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return multiply


def _emit_bf16_block(emit, high, left, right, count, start, start_step, sums, prefetch, lines):
    """Emit the code for `high` registers of rows."""
    quarters = [(i, j) for i in range(high) for j in range(2)]
    first, results = emit.pointer(start), emit.pointer(sums)
    for register, (i, j) in enumerate(quarters):
        load_tile(
            emit, register, emit.moved(first, (start_step, TILE_ROWS * i), 64 * j), start_step
        )

    def step(_, state):
        left, right, prefetch = state

        def ahead(at, state):
            emit.prefetch(emit.moved(prefetch, (at, 64)), near=2)
            return []

        load_tile(emit, _BF16_RIGHT, right, number(PAIR_BYTES))
        for i in range(high):
            # Past the L1 cache, where the block of the panel is to stay: products take a tenth less
            # than with the left side prefetched to L1.
            load_tile(emit, _BF16_LEFT + i, emit.moved(left, _TILE_BYTES * i), number(64), "t1")
            _add_products(emit, 2 * i, _BF16_LEFT + i, _BF16_RIGHT)
        load_tile(emit, _BF16_RIGHT + 1, emit.moved(right, 64), number(PAIR_BYTES))
        for i in range(high):
            _add_products(emit, 2 * i + 1, _BF16_LEFT + i, _BF16_RIGHT + 1)
        emit.loop(lines, 1, [], ahead)
        return [
            emit.moved(left, _TILE_BYTES * high),
            emit.moved(right, STEP_BYTES),
            emit.moved(prefetch, STEP_BYTES),
        ]

    emit.loop(count, 1, [emit.pointer(x) for x in (left, right, prefetch)], step)
    for register, (i, j) in enumerate(quarters):
        address = emit.moved(results, 4 * PANEL * TILE_ROWS * i + 64 * j)
        store_tile(emit, register, address, number(4 * PANEL))


def _add_products(emit, sums, left, right):
    registers = [tile_register(x) for x in (sums, left, right)]
    call_llvm(emit.builder, "llvm.x86.tdpbf16ps", VOID, registers)
