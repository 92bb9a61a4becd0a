"""The inner loop of products of bf16 on vector registers, in LLVM vector code.

AVX-512 with bf16 adds the products of pairs of bf16 to f32 (`vdpbf16ps`), and takes subnormal
numbers for zeros; so does aarch64 with products of two rows and two columns (`bfmmla`). Other
processors widen both to f32, where their product is exact, and add one after the other.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    FEATURES,
    I8,
    I16,
    I32,
    IS_ARM,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
    number,
    words,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import (
    PANEL,
    ROWS,
    VECTORS,
    transposed_lanes,
    vector_addresses,
)
from gptrs_backend_numba.kernels.matmul.two_by_two_ir import (
    COLUMN_PAIRS,
    blocks_of,
    load_rows,
    pairs_of_rows,
    rows_of,
)

STEP = 32
"""Values of k in a step: a row of a register of AMX."""
PAIRS = STEP // 2
PAIR_BYTES = 4 * PANEL
"""Bytes of a pair of values of k of a panel."""
STEP_BYTES = PAIRS * PAIR_BYTES
"""Bytes of a step of a panel."""
HAS_DOT = WIDTH == 16 and "avx512bf16" in FEATURES
"""Whether there is an instruction for products of bf16 on vector registers."""
HAS_BLOCKS = IS_ARM and "bf16" in FEATURES
"""Whether there is one for two rows by two columns of 4 values of k, see `two_by_two_ir`."""
LEFT_SIZE = 2 if HAS_DOT or HAS_BLOCKS else 4
"""Bytes of a number of the left side: where it is widened, that is done when it is packed."""
TOGETHER = 4 if HAS_BLOCKS else 2
"""Values of k of a column that lie together in a panel."""
_GROUPS = STEP // TOGETHER
WORDS = ir.VectorType(I32, WIDTH)
"""Pairs of bf16 in a vector register."""


class _BrainFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite does not have."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BrainFloat)

    def __hash__(self):
        return hash(_BrainFloat)


@cache
def round_step(size: int):
    """Intrinsic: `STEP` numbers rounded to bf16: the nearest, and the even one of two.

    Arguments: the address of numbers of type f32, contiguous; of the results, of `size` bytes.
    """

    @named_intrinsic(f"round_step_{size}")
    def round_(typing_context, source, target):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            source, target = (emit.pointer(address) for address in arguments)
            for at in range(0, STEP, WIDTH):
                value = emit.load(emit.moved(source, 4 * at), VECTOR, 4)
                store_rounded(emit, value, emit.moved(target, size * at), size)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return round_


def rounded_bits(emit, value):
    """Return the bits of f32 rounded to bf16, in the upper halves of words."""
    b = emit.builder
    bits = b.bitcast(value, WORDS)
    odd = b.and_(b.lshr(bits, words(16)), words(1))
    rounded = b.add(bits, b.add(odd, words(0x7FFF)))
    quiet = b.or_(bits, words(0x400000))  # a NaN stays one
    return b.select(b.fcmp_unordered("uno", value, value), quiet, rounded)


def store_rounded(emit, value, address, size):
    """Store a vector rounded to bf16, as numbers of `size` bytes."""
    b = emit.builder
    result = rounded_bits(emit, value)
    if size == 4:
        result = b.and_(result, words(-0x10000))
        emit.store(b.bitcast(result, VECTOR), address)
    else:
        halves = b.trunc(b.lshr(result, words(16)), ir.VectorType(I16, WIDTH))
        emit.store(halves, address)


@cache
def round_columns(size: int):
    """Intrinsic: a square of `STEP` x `WIDTH` numbers of a transposed matrix, rounded, by rows.

    Arguments: the address of the first number of the first row, f32, whose neighbours belong to the
    next rows; the bytes to the next number of a row; how many rows there are, 0 or less for none,
    and how many numbers; of the results, rows of `STEP` numbers of `size` bytes, zeros where there
    are none; and how many rows to write.
    """

    @named_intrinsic(f"round_columns_{size}")
    def round_(typing_context, source, step, rows, length, target, room):
        def generate(context, builder, signature, arguments):
            source, step, rows, length, target, room = arguments
            emit = VectorEmitter(builder)
            source, target = emit.pointer(source), emit.pointer(target)
            whole = builder.and_(
                builder.icmp_signed(">=", rows, number(WIDTH)),
                builder.icmp_signed(">=", length, number(STEP)),
            )
            with builder.if_else(whole) as (full, part):
                for counts, branch in ((None, full), ((rows, length), part)):
                    with branch:
                        found = list(_columns(emit, size, source, step, counts))
                        _store_columns(emit, found, target, number(STEP * size), room)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return round_


@intrinsic
def turn_columns(typing_context, source, step, rows, target, target_step):
    """Write `STEP` x `WIDTH` numbers of a transposed matrix, f32, by rows, if `rows` are as many.

    Arguments: the address of the first number of the first row, whose neighbours belong to the next
    rows; the bytes to the next number of a row; the address of the first row, and the bytes from
    one to the next.
    """

    def generate(context, builder, signature, arguments):
        source, step, rows, target, target_step = arguments
        emit = VectorEmitter(builder)
        source, target = emit.pointer(source), emit.pointer(target)
        whole = builder.icmp_signed(">=", rows, number(WIDTH))
        with builder.if_else(whole) as (full, part):
            for counts, branch in ((None, full), ((rows, number(STEP)), part)):
                with branch:
                    found = list(_columns(emit, 0, source, step, counts))
                    _store_columns(emit, found, target, target_step, rows)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _columns(emit, size, source, step, counts):
    """Yield the first vectors of `WIDTH` rows, then the next ones.

    Numbers are rounded to `size` bytes, or are as they are with 0.
    """
    b = emit.builder
    together = 2 if size == 2 else 1
    for first in range(0, STEP, together * WIDTH):
        columns = []
        for k in range(first, first + together * WIDTH):
            address = emit.moved(source, (step, k))
            if counts is None:
                value = emit.load(address, VECTOR, 4)
            else:
                value = _some(emit, address, k, *counts)
            columns.append(rounded_bits(emit, value) if size else b.bitcast(value, WORDS))
        if size == 2:
            columns = [pair_words(b, *columns[i : i + 2]) for i in range(0, len(columns), 2)]
        elif size == 4:
            columns = [b.and_(bits, words(-0x10000)) for bits in columns]
        yield transposed_lanes(b, columns)


def _store_columns(emit, found, target, step, room):
    """Store what `_columns` yields in the first `room` rows, `step` bytes apart."""
    b = emit.builder
    for i in range(WIDTH):
        with b.if_then(b.icmp_signed("<", number(i), room)):
            for at, rows in enumerate(found):
                emit.store(rows[i], emit.moved(target, (step, i), 4 * WIDTH * at))


def _some(emit, address, k, rows, length):
    """Load the first `rows` lanes of a vector, or none from number `length` on; the rest is 0."""
    b = emit.builder
    count = b.select(b.icmp_signed("<", number(k), length), rows, number(0))
    lanes = ir.Constant(WORDS, list(range(WIDTH)))
    mask = b.icmp_signed(
        "<", lanes, b.bitcast(emit.splat(b.bitcast(b.trunc(count, I32), F32)), WORDS)
    )
    arguments = [address, ir.Constant(I32, 4), mask, ZERO]
    return call_llvm(b, f"llvm.masked.load.v{WIDTH}f32.p0", VECTOR, arguments)


def pair_words(builder, low, high):
    """Return two bf16 a word, of the upper halves of words."""
    return builder.or_(builder.lshr(low, words(16)), builder.and_(high, words(-0x10000)))


def _rounded(emit, address, dtype):
    """Load `WIDTH` numbers as bits of bf16 in the upper halves of words."""
    value = emit.floats(address, dtype)
    bits = emit.builder.bitcast(value, WORDS)
    return bits if dtype == "bf16" else rounded_bits(emit, value)


@cache
def pair_rows(dtype: str):
    """Intrinsic: `STEP` rows of a panel of numbers of a type, rounded, in pairs.

    Arguments: the address of the first row, and the bytes from one to the next; of the results,
    `STEP_BYTES`.
    """
    size = bytes_of(dtype)

    @named_intrinsic(f"pair_rows_{dtype}")
    def paired(typing_context, source, step, target):
        def generate(context, builder, signature, arguments):
            source, step, target = arguments
            emit = VectorEmitter(builder)
            ahead = builder.mul(step, number(STEP))

            def body(_, state):
                source, target = state
                for v in range(VECTORS):
                    low = emit.moved(source, size * WIDTH * v)
                    high = emit.moved(low, (step, 1))
                    for address in (low, high):
                        emit.prefetch(emit.moved(address, (ahead, 1)), near=2)
                    word = pair_words(
                        builder, *(_rounded(emit, address, dtype) for address in (low, high))
                    )
                    emit.store(word, emit.moved(target, 4 * WIDTH * v))
                return [emit.moved(source, (step, 2)), emit.moved(target, PAIR_BYTES)]

            emit.loop(number(PAIRS), 1, [emit.pointer(source), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return paired


@cache
def pair_columns(dtype: str):
    """Intrinsic: `WIDTH` columns of a panel, `STEP` consecutive numbers each, rounded, in pairs.

    Arguments: the address of the first column, of numbers of a type, and the bytes from one to the
    next; of the results, whose pairs are `PAIR_BYTES` apart.
    """
    size = bytes_of(dtype)
    uppers = ir.Constant(ir.VectorType(I32, 2 * WIDTH), list(range(1, 4 * WIDTH, 2)))

    @named_intrinsic(f"pair_columns_{dtype}")
    def paired(typing_context, source, step, target):
        def generate(context, builder, signature, arguments):
            source, step, target = arguments
            emit = VectorEmitter(builder)
            source, target = emit.pointer(source), emit.pointer(target)
            halves = ir.VectorType(I16, 2 * WIDTH)
            for first in range(0, PAIRS, WIDTH):
                rows = []
                for j in range(WIDTH):
                    address = emit.moved(source, (step, j), 2 * size * first)
                    pair = [
                        builder.bitcast(_rounded(emit, each, dtype), halves)
                        for each in (address, emit.moved(address, size * WIDTH))
                    ]
                    row = builder.shuffle_vector(*pair, uppers)
                    rows.append(builder.bitcast(row, WORDS))
                for i, row in enumerate(transposed_lanes(builder, rows)):
                    emit.store(row, emit.moved(target, PAIR_BYTES * (first + i)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return paired


@cache
def multiply_rows():
    """Intrinsic: adds the products of `count` steps to the sums of 1 to `ROWS` rows and a panel.

    Arguments: the number of rows; the address of the left side, whose rows follow one another in
    each step, numbers of `LEFT_SIZE` bytes; of the panel; the count; of what the sums begin with,
    f32, and the bytes from one row of it to the next; of the sums, `PANEL` a row; and of what is
    prefetched, and how many cache lines of it, at most a step, with each step.
    """

    @named_intrinsic("multiply_rows_bf16")
    def multiply(typing_context, rows, left, right, count, start, start_step, sums,
                 prefetch, lines):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            for height in emit.one_of(wanted, range(1, ROWS + 1)):
                _emit_rows(emit, height, *rest)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return multiply


def _emit_rows(emit, rows, left, right, count, start, start_step, sums, prefetch, lines):
    b = emit.builder
    first = emit.pointer(start)
    starts = [
        emit.load(emit.moved(first, (start_step, row), 4 * WIDTH * v), VECTOR, 4)
        for row in range(rows)
        for v in range(VECTORS)
    ]
    if HAS_BLOCKS:
        starts = blocks_of(b, starts, rows)
    ahead = b.mul(lines, number(64 // _GROUPS))

    def step(_, state):
        left, *others = state

        def pair(at, state):
            right, prefetch, *sums = state
            emit.prefetch(prefetch, near=2)
            emit.prefetch(emit.moved(prefetch, (ahead, 1), -64), near=2)
            address = emit.moved(left, (at, TOGETHER * LEFT_SIZE))
            sums = _with_products(emit, address, right, sums, rows)
            return [
                emit.moved(right, 2 * TOGETHER * PANEL),
                emit.moved(prefetch, (ahead, 1)),
                *sums,
            ]

        right, _, *sums = emit.loop(number(_GROUPS), 1, others, pair)
        return [
            emit.moved(left, STEP * LEFT_SIZE * rows),
            right,
            emit.moved(others[1], STEP_BYTES),
            *sums,
        ]

    begin = [emit.pointer(left), emit.pointer(right), emit.pointer(prefetch), *starts]
    found = emit.loop(count, 1, begin, step)[3:]
    if HAS_BLOCKS:
        found = rows_of(b, found, rows)
    for value, address in zip(
        found, vector_addresses(emit, sums, number(PANEL), rows, VECTORS), strict=True
    ):
        emit.store(value, address)


def _with_products(emit, left, right, sums, rows):
    """Return the sums plus the products of `TOGETHER` values of k."""
    if HAS_BLOCKS:
        return _with_blocks(emit, left, right, sums, rows)
    vectors = [emit.load(emit.moved(right, 4 * WIDTH * v), WORDS, 4) for v in range(VECTORS)]
    if HAS_DOT:
        for row in range(rows):
            pair = emit.splat(emit.load(emit.moved(left, STEP * LEFT_SIZE * row), F32, 4))
            for v, words_ in enumerate(vectors):
                at = VECTORS * row + v
                sums[at] = _dot(emit, sums[at], pair, words_)
        return sums
    b = emit.builder
    low = [b.bitcast(b.shl(each, words(16)), VECTOR) for each in vectors]
    high = [b.bitcast(b.and_(each, words(-0x10000)), VECTOR) for each in vectors]
    for half, values in enumerate((low, high)):
        for row in range(rows):
            address = emit.moved(left, STEP * LEFT_SIZE * row + 4 * half)
            single = emit.splat(emit.load(address, F32, 4))
            for v, value in enumerate(values):
                at = VECTORS * row + v
                sums[at] = emit.multiply_add(single, value, sums[at])
    return sums


def _with_blocks(emit, left, right, sums, rows):
    """Return the sums of blocks plus the products of 4 values of k."""
    kind = ir.VectorType(_BrainFloat(), 8)
    b, sums = emit.builder, list(sums)
    columns = [
        b.bitcast(emit.load(emit.moved(right, 4 * WIDTH * p), WORDS, 4), kind)
        for p in range(COLUMN_PAIRS)
    ]
    for pair, numbers in enumerate(pairs_of_rows(rows)):
        both = load_rows(emit, *(emit.moved(left, STEP * LEFT_SIZE * row) for row in numbers))
        both = b.bitcast(both, kind)
        for p, column in enumerate(columns):
            at = pair * COLUMN_PAIRS + p
            sums[at] = call_llvm(b, "llvm.aarch64.neon.bfmmla", VECTOR, [sums[at], both, column])
    return sums


def _dot(emit, total, left, right):
    """Return the sums plus the products of pairs of bf16."""
    kind = ir.VectorType(_BrainFloat(), 2 * WIDTH)
    pairs = [emit.builder.bitcast(value, kind) for value in (left, right)]
    return call_llvm(emit.builder, "llvm.x86.avx512bf16.dpbf16ps.512", VECTOR, [total, *pairs])


class PairEmitter(VectorEmitter):
    """Vectors of pairs of bf16, whose bits are held as f32; sums are f32. Needs `HAS_DOT`."""

    def multiply_add(self, x, y, z):
        """Return `z` plus both products of each pair."""
        return _dot(self, z, x, y)


def store_narrow(emit, value, pointer, mask):
    """Write the lanes in the mask, rounded to bf16: the nearest, and the even one of two.

    Subnormal numbers become 0, for which `vdpbf16ps` takes them anyway. Needs `HAS_DOT`.
    """
    b = emit.builder
    kind = ir.VectorType(I16, WIDTH)
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    narrow = call_llvm(b, name, ir.VectorType(_BrainFloat(), WIDTH), [value])
    arguments = [b.bitcast(narrow, kind), pointer, ir.Constant(I32, 2), mask]
    call_llvm(b, f"llvm.masked.store.v{WIDTH}i16.p0", ir.VoidType(), arguments)


# Integer sums of products of codes where no instruction adds four of bytes (x86 without VNNI).
#
# Small codes: one instruction multiplies unsigned bytes by signed ones and adds pairs of products,
# as 16 bits that saturate. Activations are from -127 to 127, so a pair is at most `254 * most` for
# codes up to `most`: the sums of so many chunks of 4 as `chunks_together` says stay within 16 bits,
# and are exact. Codes of 4 bits are widened once in a block of 32.
#
# Larger codes: pairs of 16 bits, with activations that are rounded to 16 bits, in the order in
# which codes lie in halves of words: (0, 2), then (1, 3).


_LARGEST_PAIR = 2 * 127
"""The largest sum of two activations."""
_LARGEST_HALF = (1 << 15) - 1
_BYTES, _HALVES, _WORDS = (
    ir.VectorType(kind, size * WIDTH) for kind, size in ((I8, 4), (I16, 2), (I32, 1))
)
_ONES = ir.Constant(_HALVES, [1] * (2 * WIDTH))
_NEEDED, _BYTE_PAIRS, _HALF_PAIRS = {
    16: ("avx512bw", "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512"),
    8: ("avx2", "avx2.pmadd.ub.sw", "avx2.pmadd.wd"),
    4: ("ssse3", "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),  # no processor of aarch64 has it
}[WIDTH]
HAS_PAIRS = _NEEDED in FEATURES
"""True if there are instructions for sums of two products, of bytes and of 16 bits."""


def chunks_together(most: int) -> int:
    """Return of how many chunks the sums of pairs fit 16 bits, with codes up to `most`."""
    return _LARGEST_HALF // (_LARGEST_PAIR * most)


def pair_dots(emit, form, left, rows, codes_of, four_of):
    """Return the integer sums of a block, row by row; `left` and the codes are read in order of k.

    `codes_of(pointer, chunk, v)` are the codes of 4 values of k for a vector of columns, in words;
    `four_of(pointer, r, bytes)` the word of a row that is so many bytes behind its begin, in every
    word.
    """
    x, w = left
    multiply = _multiply_wide if form.wide else _multiply_bytes
    together = 1 if form.wide else chunks_together(form.most)
    count = form.block // 4
    sums, halves = ([None] * (rows * VECTORS) for _ in range(2))
    for chunk in range(count):
        codes = _split(emit, form, [codes_of(w, chunk, v) for v in range(VECTORS)])
        widens = not form.wide and ((chunk + 1) % together == 0 or chunk + 1 == count)
        for r in range(rows):
            found = sums if form.wide else halves
            own = slice(r * VECTORS, (r + 1) * VECTORS)
            found[own] = multiply(emit, codes, found[own], x, r, chunk, four_of)
            if widens:
                sums[own] = [
                    _pairs(emit, _HALF_PAIRS, half, _ONES, total, _WORDS)
                    for half, total in zip(halves[own], sums[own], strict=True)
                ]
                halves[own] = [None] * VECTORS
                found = sums
            # Without this LLVM splits all codes of a block before it multiplies any.
            x, w, *found[own] = emit.in_order([x, w, *found[own]])
    return sums


def _split(emit, form, codes):
    """Return codes as they are multiplied: those at even positions and at odd ones if wide."""
    if not form.wide:
        return codes
    b = emit.builder
    low = ir.Constant(_HALVES, [0xFF] * (2 * WIDTH))
    eight = ir.Constant(_HALVES, [8] * (2 * WIDTH))
    halves = [b.bitcast(each, _HALVES) for each in codes]
    return [b.and_(each, low) for each in halves], [b.lshr(each, eight) for each in halves]


def _multiply_bytes(emit, codes, totals, x, r, chunk, four_of):
    """Return the totals plus the pairs of a chunk, as 16 bits."""
    b = emit.builder
    four = b.bitcast(four_of(x, r, 4 * chunk), _BYTES)
    return [
        _pairs(emit, _BYTE_PAIRS, b.bitcast(each, _BYTES), four, total, _HALVES)
        for each, total in zip(codes, totals, strict=True)
    ]


def _multiply_wide(emit, codes, totals, x, r, chunk, four_of):
    """Return the totals plus the products of a chunk."""
    b = emit.builder
    for half, values in enumerate(codes):
        two = b.bitcast(four_of(x, r, 8 * chunk + 4 * half), _HALVES)
        totals = [
            _pairs(emit, _HALF_PAIRS, each, two, total, _WORDS)
            for each, total in zip(values, totals, strict=True)
        ]
    return totals


def _pairs(emit, name, left, right, total, result):
    """Return the total, if there is one yet, plus the sums of pairs of products."""
    found = call_llvm(emit.builder, f"llvm.x86.{name}", result, [left, right])
    return found if total is None else emit.builder.add(total, found)


def store_wide(emit, codes, address):
    """Store rounded activations, words, as 16 bits in the order in which they are multiplied."""
    b = emit.builder
    halves = b.trunc(codes, ir.VectorType(I16, WIDTH))
    order = [at + step for at in range(0, WIDTH, 4) for step in (0, 2, 1, 3)]
    lanes = ir.Constant(ir.VectorType(I32, WIDTH), order)
    found = b.shuffle_vector(halves, halves, lanes)
    b.store(found, b.bitcast(address, ir.PointerType(found.type)), 1)
