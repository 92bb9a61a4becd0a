"""The inner loop of products of 8-bit integers in LLVM vector code; sums are si32, and exact.

The left side is unsigned bytes, row by row, the right side signed ones in panels: for each 4 values
of k those of a column in 4 bytes, column by column. With VNNI or NEON an instruction adds four
products; with i8mm 8 values of k lie together, see `two_by_two_ir`. Without, bytes are widened in
registers to pairs of 16 bits, whose products one instruction adds: that of bytes, `vpmaddubsw`,
would saturate at 255 * 127 * 2, unless it takes half a byte. Many rows are widened once, see
`wide_codes_ir`.
"""

from __future__ import annotations

from functools import cache, partial

from llvmlite import ir

from gptrs_backend_numba.codegen.byte_vectors import (
    HAS_DOTS,
    HAS_MATRICES,
    MOVED,
    dots,
    matrix_dots,
)
from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    FEATURES,
    I8,
    I16,
    I32,
    IS_ARM,
    VECTOR,
    WIDTH,
    VectorEmitter,
    number,
    words,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_PAIRS
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, VECTORS, vector_addresses
from gptrs_backend_numba.kernels.matmul.two_by_two_ir import (
    COLUMN_PAIRS,
    blocks_of,
    load_rows,
    pairs_of_rows,
    rows_of,
)

FOUR = 8 if HAS_MATRICES else 4
"""Values of k that one instruction takes."""
STEP_BYTES = FOUR * PANEL
"""Bytes of so many rows of a panel."""
INTEGER_ROWS = ROWS if HAS_DOTS or IS_ARM or "avx512f" in FEATURES else 4
"""Rows of the largest tile. Of 16 registers, 8 hold sums where pairs need 4 for the right side."""
_CHAINS = {1: 4, 2: 4, 3: 2}
"""Sums of each lane that grow side by side where a tile has few rows: each waits for its last."""
WORDS = ir.VectorType(I32, WIDTH)
HALVES = ir.VectorType(I16, 2 * WIDTH)
_EIGHT = ir.Constant(HALVES, [8] * (2 * WIDTH))
PAIRS = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[WIDTH]
USES_PAIRS = HAS_PAIRS and not HAS_DOTS
BYTES = ir.VectorType(I8, 4 * WIDTH)
BYTE_PAIRS = "avx2.pmadd.ub.sw"
_NIBBLE_STEPS = 8
"""Sums of two products of a nibble and a byte that fit 16 bits: 8 * 2 * 15 * 128 < 2^15."""
_ROWS_BY_NIBBLES = 2 if USES_PAIRS and WIDTH == 8 else 0
"""Rows up to which the nibbles of the left side are multiplied: to widen the right side takes a
third of the instructions of one row."""


@cache
def integer_tile():
    """Intrinsic: the sums of 1 to `INTEGER_ROWS` rows of bytes and a panel.

    Arguments: the number of rows; the address of the first, and the bytes from one to the next; the
    bytes from one run of values of k to the next, and how many there are; the address of the panel;
    how many times `FOUR` values of k a run has, at least 0; the addresses of what the sums of each
    row begin with, and of the sums, both rows of `PANEL` words.
    """
    return tile_intrinsic("integer_tile", INTEGER_ROWS, _emit_tile)


def tile_intrinsic(name, most, emit_tile):
    """Return the intrinsic of tiles of 1 to `most` rows; `emit_tile` writes each height."""

    @named_intrinsic(name)
    def micro_kernel(typing_context, rows, left, step, line, runs, panel, count, start, out):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            # The usual heights first: each comparison takes a cycle of the 96 of a short tile.
            for height in emit.one_of(wanted, range(most, 0, -1)):
                emit_tile(emit, rest, height)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return micro_kernel


def _emit_tile(emit, arguments, rows):
    """Emit the code of a tile of `rows` rows."""
    _, step, _, _, _, count, start, out = arguments
    b = emit.builder
    first = first_sums(emit, start, rows)
    by_nibbles = rows <= _ROWS_BY_NIBBLES
    chains = 1 if by_nibbles else _CHAINS.get(rows, 1)
    begins = blocks_of(b, first, rows) if HAS_MATRICES else first
    size = len(begins)
    sums = [*begins, *[words(0)] * (size * (chains - 1))]
    add_products = partial(_with_blocks, rows=rows) if HAS_MATRICES else _with_products
    by_two = chains == 1 and IS_ARM and "dotprod" in FEATURES and not HAS_MATRICES
    group = _NIBBLE_STEPS if by_nibbles else 2 if by_two else chains
    together = b.sdiv(count, number(group)) if group > 1 else number(0)
    alone = b.sub(count, b.mul(together, number(group)))

    def double(_, state):
        x, w, *sums = state
        sums = _with_two_products(emit, (x, step), w, sums)
        return [emit.moved(x, 2 * FOUR), emit.moved(w, 2 * STEP_BYTES), *sums]

    def nibbles(_, state):
        return _with_nibbles(emit, step, *state)

    def several(_, state):
        x, w, *sums = state
        for chain in range(chains):
            own = slice(chain * size, (chain + 1) * size)
            sums[own] = add_products(emit, (x, step), w, sums[own])
            x, w = emit.moved(x, FOUR), emit.moved(w, STEP_BYTES)
        return [x, w, *sums]

    def single(_, state):
        x, w, *sums = state
        sums[:size] = add_products(emit, (x, step), w, sums[:size])
        return [emit.moved(x, FOUR), emit.moved(w, STEP_BYTES), *sums]

    def steps(state):
        if group > 1:
            body = nibbles if by_nibbles else double if by_two else several
            state = emit.loop(together, 1, state, body)
        return emit.loop(alone, 1, state, single)

    _, found = sums_of_runs(emit, arguments, sums, steps)
    store_sums(emit, found, size, rows, out)


def first_sums(emit, start, rows):
    """Return what the sums of each of `rows` rows begin with."""
    begin = emit.pointer(start)
    return [emit.load(emit.moved(begin, 4 * WIDTH * v), WORDS, 4) for v in range(VECTORS)] * rows


def sums_of_runs(emit, arguments, sums, steps):
    """Return the end of the codes of a panel, and the sums of a tile plus all its products.

    `steps` takes addresses in the left side and the panel, and sums; it returns them after a run.
    """
    left, _, line, runs, panel, *_ = arguments

    def run(_, state):
        begin, *_ = state
        _, *rest = steps([*state])
        return [emit.moved(begin, (line, 1)), *rest]

    _, end, *found = emit.loop(runs, 1, [emit.pointer(left), emit.pointer(panel), *sums], run)
    return end, found


@intrinsic
def scale_words(typing_context, source, target, factor):
    """Write `PANEL` words from one address to another, times a factor.

    Loops over two arrays that may overlap become single instructions.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        source, target, factor = arguments
        vector = splat_word(builder, factor)
        for v in range(VECTORS):
            at = 4 * WIDTH * v
            scaled = builder.mul(emit.load(emit.moved(emit.pointer(source), at), WORDS, 4), vector)
            emit.store(builder.bitcast(scaled, VECTOR), emit.moved(emit.pointer(target), at))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int32), generate


def store_sums(emit, found, size, rows, out):
    """Add up the chains of `size` sums each, and store those of every row."""
    b = emit.builder
    for at in range(size, len(found)):
        found[at % size] = b.add(found[at % size], found[at])
    found = rows_of(b, found[:size], rows) if HAS_MATRICES else found[:size]
    for value, address in zip(
        found, vector_addresses(emit, out, number(PANEL), rows, VECTORS), strict=True
    ):
        emit.store(b.bitcast(value, VECTOR), address)


def _with_products(emit, left, w, sums):
    """Return the sums plus the products of `FOUR` values of k."""
    b = emit.builder
    x, step = left
    addresses = (emit.moved(w, 4 * WIDTH * v) for v in range(VECTORS))
    columns = [_split(b, emit.load(address, WORDS, 4)) for address in addresses]
    made = []
    for row in range(len(sums) // VECTORS):
        four = splat_word(b, emit.load(emit.moved(x, (step, row)), I32, 1))
        if MOVED:
            four = b.xor(four, words(MOVED * 0x01010101))
        pairs = _unsigned_pairs(b, four)
        for v in range(VECTORS):
            made.append(_dot(b, sums[row * VECTORS + v], four, pairs, columns[v]))
        if HAS_DOTS or USES_PAIRS:
            # Otherwise LLVM loads or widens all rows of two steps before it multiplies any, and
            # sums leave the registers: 56 x 56 x 64 by 3 x 3 takes 1.3 times as long.
            x, *made[-VECTORS:] = emit.in_order([x, *made[-VECTORS:]])
    return made


def _with_nibbles(emit, step, x, w, *sums):
    """Return the next addresses, and the sums plus the products of `_NIBBLE_STEPS` steps; for AVX2.

    `vpmaddubsw` takes bytes as they are. Of halves of unsigned ones its sums do not saturate, and
    those of all steps fit 16 bits; the upper halves count 16 times.
    """
    b = emit.builder
    low = words(0x0F0F0F0F)
    parts = [[None] * len(sums) for _ in range(2)]
    for at in range(_NIBBLE_STEPS):
        columns = [
            b.bitcast(emit.load(emit.moved(w, STEP_BYTES * at + 4 * WIDTH * v), WORDS, 4), BYTES)
            for v in range(VECTORS)
        ]
        for row in range(len(sums) // VECTORS):
            four = splat_word(b, emit.load(emit.moved(x, (step, row), FOUR * at), I32, 1))
            for part, nibbles in zip(parts, (four, b.lshr(four, words(4))), strict=True):
                codes = b.bitcast(b.and_(nibbles, low), BYTES)
                for v, column in enumerate(columns):
                    made = call_llvm(b, f"llvm.x86.{BYTE_PAIRS}", HALVES, [codes, column])
                    total = part[row * VECTORS + v]
                    part[row * VECTORS + v] = made if total is None else b.add(total, made)
    for part, weight in zip(parts, (1, 16), strict=True):
        factor = ir.Constant(HALVES, [weight] * (2 * WIDTH))
        found = [call_llvm(b, f"llvm.x86.{PAIRS}", WORDS, [each, factor]) for each in part]
        sums = [b.add(total, each) for total, each in zip(sums, found, strict=True)]
    following = emit.moved(x, FOUR * _NIBBLE_STEPS), emit.moved(w, STEP_BYTES * _NIBBLE_STEPS)
    return [*following, *sums]


def _with_two_products(emit, left, w, sums):
    """Return the sums plus the products of twice `FOUR` values of k, for aarch64.

    A load brings both to a register, whose words `sdot` names: 0.6 of the instructions.
    """
    b = emit.builder
    x, step = left
    pair = ir.VectorType(I32, 2)
    moved = ir.Constant(pair, [MOVED * 0x01010101] * 2)
    columns = [
        [emit.load(emit.moved(w, STEP_BYTES * part + 4 * WIDTH * v), WORDS, 4) for part in (0, 1)]
        for v in range(VECTORS)
    ]
    made = []
    for row in range(len(sums) // VECTORS):
        both = b.xor(emit.load(emit.moved(x, (step, row)), pair, 1), moved)
        lanes = [ir.Constant(WORDS, [part] * WIDTH) for part in (0, 1)]
        fours = [b.shuffle_vector(both, both, each) for each in lanes]
        for v in range(VECTORS):
            total = sums[row * VECTORS + v]
            for four, codes in zip(fours, columns[v], strict=True):
                total = dots(b, total, four, codes)
            made.append(total)
        x, *made[-VECTORS:] = emit.in_order([x, *made[-VECTORS:]])
    return made


def _with_blocks(emit, left, w, sums, rows):
    """Return the sums of blocks plus the products of `FOUR` values of k."""
    b = emit.builder
    x, step = left
    columns = [emit.load(emit.moved(w, 4 * WIDTH * p), WORDS, 4) for p in range(COLUMN_PAIRS)]
    made = []
    for pair, numbers in enumerate(pairs_of_rows(rows)):
        both = load_rows(emit, *(emit.moved(x, (step, row)) for row in numbers))
        for p, column in enumerate(columns):
            made.append(matrix_dots(b, sums[pair * COLUMN_PAIRS + p], both, column))
        x, *made[-COLUMN_PAIRS:] = emit.in_order([x, *made[-COLUMN_PAIRS:]])
    return made


def _split(b, codes):
    """Return signed bytes as they are multiplied: as pairs of 16 bits, bytes (0, 2) and (1, 3)."""
    if not USES_PAIRS:
        return codes
    halves = b.bitcast(codes, HALVES)
    return b.ashr(b.shl(halves, _EIGHT), _EIGHT), b.ashr(halves, _EIGHT)


def _unsigned_pairs(b, four):
    """Return unsigned bytes as the pairs that `_split` makes of signed ones."""
    if not USES_PAIRS:
        return None
    even = b.and_(four, words(0x00FF00FF))
    return b.bitcast(even, HALVES), b.lshr(b.bitcast(four, HALVES), _EIGHT)


def _dot(b, total, four, pairs, codes):
    """Add the products of 4 unsigned bytes and 4 signed ones in each lane."""
    if HAS_DOTS:
        return dots(b, total, four, codes)
    if USES_PAIRS:
        for unsigned, signed in zip(pairs, codes, strict=True):
            total = b.add(total, call_llvm(b, f"llvm.x86.{PAIRS}", WORDS, [unsigned, signed]))
        return total
    for byte in range(FOUR):
        value = b.and_(b.lshr(four, words(8 * byte)), words(0xFF))
        code = b.ashr(b.shl(codes, words(24 - 8 * byte)), words(24))
        total = b.add(total, b.mul(code, value))
    return total


def splat_word(b, value):
    """Return a vector with one i32 in every lane."""
    undefined = ir.Constant(WORDS, ir.Undefined)
    single = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(single, undefined, words(0))


@cache
def copy_moved(chunk: int):
    """Intrinsic: copy bytes, moved by `flip`, 0 or 128, `chunk` at a time, a power of 2.

    Arguments: the addresses of source and target; how many; `flip`. Up to `chunk - 1` bytes more
    are read and written.
    """
    type_ = ir.VectorType(I8, chunk)

    @named_intrinsic(f"copy_moved_{chunk}")
    def copied(typing_context, source, target, count, flip):
        def generate(context, builder, signature, arguments):
            source, target, count, flip = arguments
            emit = VectorEmitter(builder)
            undefined = ir.Constant(type_, ir.Undefined)
            flip = builder.trunc(flip, I8)
            moved = builder.insert_element(undefined, flip, ir.Constant(I32, 0))
            lanes = ir.Constant(ir.VectorType(I32, chunk), [0] * chunk)
            moved = builder.shuffle_vector(moved, undefined, lanes)

            def body(_, state):
                source, target = state
                value = builder.xor(emit.load(source, type_, 1), moved)
                builder.store(value, builder.bitcast(target, ir.PointerType(type_)), 1)
                return [emit.moved(each, chunk) for each in state]

            emit.loop(count, chunk, [emit.pointer(source), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return copied


@cache
def copy_runs(chunk: int):
    """Intrinsic: copy runs of bytes so that they follow one another, `chunk` at a time.

    Arguments: the address of the first run, the bytes from one to the next, how many; the target;
    the bytes of a run, at most `chunk` if that is less than 64. Up to `chunk - 1` bytes more are
    read and written.
    """
    type_ = ir.VectorType(I8, chunk)
    single = chunk < _LARGEST_CHUNK

    @named_intrinsic(f"copy_runs_{chunk}")
    def copied(typing_context, source, step, count, target, run):
        def generate(context, builder, signature, arguments):
            source, step, count, target, run = arguments
            emit = VectorEmitter(builder)

            def part(at, state):
                source, target = (emit.moved(each, (at, 1)) for each in state)
                value = emit.load(source, type_, 1)
                builder.store(value, builder.bitcast(target, ir.PointerType(type_)), 1)
                return state

            def each_run(_, state):
                if single:
                    part(number(0), state)
                else:
                    emit.loop(run, chunk, state, part)
                source, target = state
                return [emit.moved(source, (step, 1)), emit.moved(target, (run, 1))]

            emit.loop(count, 1, [emit.pointer(source), emit.pointer(target)], each_run)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return copied


_LARGEST_CHUNK = 64
_COLORED = 16
"""Positions whose three channels are joined at a time."""


@cache
def interleave_three():
    """Intrinsic: join three channels so that those of a position lie side by side.

    Arguments: the address of the first channel, and the bytes from one to the next; the target; the
    positions; `flip`, 0 or 128, by which bytes are moved. Returns how many positions are done:
    whole blocks of `_COLORED`. No byte is read or written beyond them.
    """
    block, joined = ir.VectorType(I8, _COLORED), ir.VectorType(I8, 3 * _COLORED)

    def lanes(numbers):
        return ir.VectorType(I32, len(numbers))(numbers)

    @named_intrinsic("interleave_three")
    def interleaved(typing_context, source, step, target, count, flip):
        def generate(context, builder, signature, arguments):
            source, step, target, count, flip = arguments
            emit = VectorEmitter(builder)
            whole = builder.and_(count, number(-_COLORED))
            undefined = ir.Constant(joined, ir.Undefined)
            moved = builder.insert_element(undefined, builder.trunc(flip, I8), ir.Constant(I32, 0))
            moved = builder.shuffle_vector(moved, undefined, lanes([0] * 3 * _COLORED))

            def body(_, state):
                source, target = state
                x, y, z = (emit.load(emit.moved(source, (step, c)), block, 1) for c in range(3))
                x, z = (builder.shuffle_vector(*pair, lanes(list(range(2 * _COLORED))))
                        for pair in ((x, y), (z, z)))  # fmt: skip
                order = [c * _COLORED + j for j in range(_COLORED) for c in range(3)]
                three = builder.xor(builder.shuffle_vector(x, z, lanes(order)), moved)
                builder.store(three, builder.bitcast(target, ir.PointerType(joined)), 1)
                return [emit.moved(source, _COLORED), emit.moved(target, 3 * _COLORED)]

            emit.loop(whole, _COLORED, [emit.pointer(source), emit.pointer(target)], body)
            return whole

        return types.int64(*[types.int64] * 5), generate

    return interleaved


NEIGHBOURS = 4
"""Positions of a depthwise convolution that are computed side by side: they share weights."""


@cache
def depthwise_sums(known: int):
    """Intrinsic: the sums of 1 to `NEIGHBOURS` positions of a depthwise convolution, all channels.

    `known` is the number of columns of a window if it is known, else 0.

    Arguments: how many positions; the address of the first byte of the first window, and the bytes
    between positions; between rows of a window, how many; between columns, how many; the addresses
    of the weights, si32, for each tap one for each channel, and of what the sums begin with; the
    channels, and the elements from one tap or position to the next, a multiple of `WIDTH`; the
    address of the sums, si32.

    Whole vectors of channels are read and written.
    """

    @named_intrinsic(f"depthwise_sums_{known}")
    def micro_kernel(
        typing_context, positions, x, step, row_step, rows, column_step, columns, weight, start,
        channels, line, out,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            for count in emit.one_of(wanted, range(1, NEIGHBOURS + 1)):
                _emit_neighbours(emit, rest, count, known)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return micro_kernel


def _with_tap(b, total, value, factor):
    """Add products of words: bytes, and weights of 16 bits.

    The upper halves of the bytes are 0, so that sums of two products of 16 bits are one product:
    those take half the time of products of words.
    """
    if HAS_DOTS and not IS_ARM:
        return call_llvm(b, f"llvm.x86.avx512.vpdpwssd.{32 * WIDTH}", WORDS, [total, value, factor])
    if USES_PAIRS:
        halves = [b.bitcast(each, HALVES) for each in (value, factor)]
        return b.add(total, call_llvm(b, f"llvm.x86.{PAIRS}", WORDS, halves))
    return b.add(total, b.mul(value, factor))


def _emit_neighbours(emit, arguments, positions, known):
    """Emit the code of `depthwise_sums`, a vector of channels after another."""
    x, step, row_step, rows, column_step, columns, *tail = arguments
    weight, start, channels, line, out = tail
    b = emit.builder
    x, weight, start, out = (emit.pointer(each) for each in (x, weight, start, out))
    narrow = ir.VectorType(I8, WIDTH)

    def block(c, _):
        begin = emit.load(emit.moved(start, (c, 4)), WORDS, 4)

        def tap_row(_, state):
            def tap(_, state):
                at, factors, *sums = state
                factor = emit.load(factors, WORDS, 4)
                for p in range(positions):
                    value = b.zext(emit.load(emit.moved(at, (step, p)), narrow, 1), WORDS)
                    sums[p] = _with_tap(b, sums[p], value, factor)
                return [emit.moved(at, (column_step, 1)), emit.moved(factors, (line, 4)), *sums]

            at = state[0]
            for _ in range(known):
                state = tap(None, list(state))
            if not known:
                state = emit.loop(columns, 1, state, tap)
            return [emit.moved(at, (row_step, 1)), *state[1:]]

        starts = [emit.moved(x, (c, 1)), emit.moved(weight, (c, 4)), *[begin] * positions]
        for p, value in enumerate(emit.loop(rows, 1, starts, tap_row)[2:]):
            emit.store(b.bitcast(value, VECTOR), emit.moved(out, (line, 4 * p), (c, 4)))
        return []

    emit.loop(channels, WIDTH, [], block)
