"""The inner loops of the matrix product in LLVM vector code.

A tile holds `ROWS` x `VECTORS * WIDTH` sums in registers. Each step of k loads one row of the
right side, `PANEL` elements, and multiplies it by one number for each row of the left side.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    FEATURES,
    I16,
    I32,
    I64,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
    emitter_of,
    number,
    words,
)

VECTORS = 2
"""Vector registers in a row of a tile."""
ROWS = 12 if FEATURES & {"avx512f", "neon"} else 6
"""Rows of the largest tile: its sums fill three quarters of the 32 or 16 registers."""
PANEL = VECTORS * WIDTH
"""Columns of a tile, and of a panel of a packed right side."""
PANELS_OF_ROW = 4
"""Panels that one row meets at a time, so that eight sums are in flight, and as many streams from
memory: 1.1 to 1.2 times as fast as two, since each sum waits for its last product."""


@cache
def tile(rows: int, dtype: str, panels: int = 1, chains: int = 1):
    """Intrinsic: `rows` x `PANEL` sums of products over `count` >= 0 values of k.

    Arguments: the address of lhs, f32, `rows` numbers for each k; of rhs, "f32", "bf16" or "f16",
    and the bytes from one k to the next; the count; two addresses of what the sums begin with,
    f32, 0 for nothing, each with the elements from one row to the next; the same of the sums; and
    two addresses to prefetch, with the bytes to move on for each k: the processor alone looks too
    little ahead. Two, since memory is faster at two places than at one.

    With several panels, which follow one another in a packed rhs, the sums of each are `PANEL`
    elements behind those of the one before. Of each a whole row is prefetched at a time, as far
    ahead as the first address says; nothing if it is 0.

    Each sum adds its products in order of k, and so is the same in a tile of any height, unless
    there are several `chains`: sums of every `chains`-th product then, which are added at the end.
    """

    @named_intrinsic(f"tile_{rows}_{dtype}_{panels}_{chains}")
    def micro_kernel(
        typing_context, lhs, rhs, step, count, start, start_row, other, other_row, out, row,
        prefetch, second_prefetch, prefetch_step,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            _emit_tile(VectorEmitter(builder), arguments, rows, dtype, panels, chains)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13), generate

    return micro_kernel


@cache
def tile_of_any_height(dtype: str):
    """Intrinsic: `tile` of 1 to `ROWS` rows; of one row and `PANELS_OF_ROW` panels for `rows` 0.

    Of a right side of `dtype`; "si32" multiplies integers of 32 bits on both sides.
    """

    @named_intrinsic(f"tile_of_any_height_{dtype}")
    def micro_kernel(
        typing_context, rows, lhs, rhs, step, count, start, start_row, other, other_row, out, row,
        prefetch, second_prefetch, prefetch_step,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = emitter_of(builder, dtype)
            wanted, *rest = arguments
            for height in emit.one_of(wanted, range(ROWS + 1)):
                panels = 1 if height else PANELS_OF_ROW
                _emit_tile(emit, rest, max(1, height), dtype, panels, 1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14), generate

    return micro_kernel


def _emit_tile(emit, arguments, rows, dtype, panels, chains):
    """Emit the code of `tile`."""
    builder = emit.builder
    lhs, rhs, step, count, start, start_row, other, other_row, *rest = arguments
    out, row, prefetch, second_prefetch, prefetch_step = rest
    unroll = max(2, chains)
    vectors = rows, VECTORS * panels
    sums = [ZERO] * (vectors[0] * vectors[1])
    for address, distance in ((start, start_row), (other, other_row)):
        sums = increased(emit, sums, address, vector_addresses(emit, address, distance, *vectors))
    starts = sums + [ZERO] * (len(sums) * (chains - 1))
    streams, ahead = [emit.pointer(rhs)], [emit.pointer(prefetch)]
    for panel in range(1, panels):
        far = builder.mul(builder.mul(count, step), number(panel))
        streams.append(emit.moved(streams[0], (far, 1)))
        ahead.append(emit.moved(ahead[0], (far, 1)))
    if panels == 1:
        ahead.append(emit.pointer(second_prefetch))
    state = [emit.pointer(lhs), *streams, *ahead, *starts]
    tail = builder.and_(count, number(unroll - 1))
    whole, quiet = builder.sub(count, tail), number(0)
    if panels > 1:
        quiet = builder.select(builder.icmp_signed("==", prefetch, quiet), whole, quiet)
    loops = (quiet, unroll, False), (builder.sub(whole, quiet), unroll, True), (tail, 1, False)
    for times, steps, prefetches in loops[panels == 1 :]:
        body = _products(emit, rows, dtype, (step, prefetch_step), steps, panels, prefetches)
        state = emit.loop(times, steps, state, body)
    sums = state[1 + len(streams) + len(ahead) :]
    results = vector_addresses(emit, out, row, *vectors)
    for at, target in enumerate(results):
        value = sums[at]
        for chain in range(1, chains):
            value = builder.fadd(value, sums[at + chain * len(results)])
        emit.store(value, target)


def vector_addresses(emit, address, row, rows, vectors):
    """Return pointers to the vectors of a tile, row by row."""
    base = emit.pointer(address)
    return [
        emit.moved(base, (row, 4 * m), 4 * WIDTH * v) for m in range(rows) for v in range(vectors)
    ]


def increased(emit, sums, address, starts):
    """Return the sums, plus the vectors at `starts` unless the address is 0."""
    b = emit.builder
    entry = b.block
    load, begin = b.append_basic_block("load"), b.append_basic_block("begin")
    b.cbranch(b.icmp_signed("!=", address, number(0)), load, begin)
    b.position_at_end(load)
    loaded = [emit.load(start, VECTOR, 4) for start in starts]
    found = [
        value if start is ZERO else b.fadd(value, start)
        for value, start in zip(loaded, sums, strict=True)
    ]
    b.branch(begin)
    b.position_at_end(begin)
    results = [b.phi(VECTOR) for _ in starts]
    for phi, start, value in zip(results, sums, found, strict=True):
        phi.add_incoming(start, entry)
        phi.add_incoming(value, load)
    return results


def _products(emit, rows, dtype, moves, steps, panels, looks_ahead):
    """Return the body of the loop over k: `steps` values, each added to the next chain of sums."""
    width = bytes_of(dtype) * WIDTH
    lines = range(0, width * VECTORS, 64) if panels > 1 else (0,)
    prefetches = max(2, panels)

    def body(k, state):
        lhs, streams, ahead = state[0], state[1 : 1 + panels], state[1 + panels :][:prefetches]
        sums = state[1 + panels + prefetches :]
        at = 0
        for u in range(steps):
            for address in ahead if looks_ahead else ():
                for line in lines:
                    emit.prefetch(emit.moved(address, line), near=2)
            right = [
                emit.floats(emit.moved(rhs, width * v), dtype)
                for rhs in streams
                for v in range(VECTORS)
            ]
            for m in range(rows):
                left = emit.splat(emit.load(emit.moved(lhs, 4 * (u * rows + m)), F32, 4))
                for value in right:
                    sums[at] = emit.multiply_add(left, value, sums[at])
                    at = (at + 1) % len(sums)
            streams = [emit.moved(x, (moves[0], 1)) for x in streams]
            ahead = [emit.moved(x, (moves[1], 1)) for x in ahead]
        return [emit.moved(lhs, 4 * steps * rows), *streams, *ahead, *sums]

    return body


DOT_ROWS = 4
"""Rows of the right side that `dots` reads side by side."""


@cache
def dots(dtype: str):
    """Intrinsic: the products of one vector with `DOT_ROWS` rows, both contiguous.

    Arguments: the address of the vector, f32; of the first row, "f32", "bf16" or "f16", and the
    bytes from one row to the next; of the sums, f32; the count, a multiple of 2 * WIDTH.
    """
    size = bytes_of(dtype)

    @named_intrinsic(f"dots_{dtype}")
    def micro_kernel(typing_context, x, rhs, step, out, count):
        def generate(context, builder, signature, arguments):
            x, rhs, step, out, count = arguments
            emit = VectorEmitter(builder)
            x, rhs, out = (emit.pointer(address) for address in (x, rhs, out))

            def body(k, sums):
                for half in range(2):
                    left = emit.load(emit.moved(x, (k, 4), 4 * half * WIDTH), VECTOR, 4)
                    for row in range(DOT_ROWS):
                        right = emit.moved(rhs, (step, row), (k, size), size * half * WIDTH)
                        emit.prefetch(emit.moved(right, (step, DOT_ROWS)), near=2)
                        at = 2 * row + half
                        sums[at] = emit.multiply_add(left, emit.floats(right, dtype), sums[at])
                return sums

            sums = emit.loop(count, 2 * WIDTH, [ZERO] * (2 * DOT_ROWS), body)
            for row in range(DOT_ROWS):
                both = builder.fadd(sums[2 * row], sums[2 * row + 1])
                emit.store(emit.total(both), emit.moved(out, 4 * row))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return micro_kernel


@cache
def transpose(size: int):
    """Intrinsic: a square of `16 // size` x `16 // size` elements of `size` bytes, transposed.

    Arguments: the address of its first row, bytes between rows; the same of the result.
    """
    side = 16 // size
    type_ = ir.VectorType(ir.IntType(8 * size), side)

    @named_intrinsic(f"transpose_{size}")
    def transposed(typing_context, source, source_step, target, target_step):
        def generate(context, builder, signature, arguments):
            source, source_step, target, target_step = arguments
            emit = VectorEmitter(builder)
            source, target = emit.pointer(source), emit.pointer(target)
            rows = [
                emit.load(emit.moved(source, (source_step, i)), type_, size) for i in range(side)
            ]
            for i, row in enumerate(transposed_lanes(builder, rows)):
                address = emit.moved(target, (target_step, i))
                builder.store(row, builder.bitcast(address, ir.PointerType(type_)), align=size)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transposed


def transposed_lanes(builder, rows):
    """Return the rows with i and i + n / 2 merged element by element, log2(n) times over."""
    side = len(rows)
    merged = [[i // 2 + (i % 2) * side + half * side // 2 for i in range(side)] for half in (0, 1)]
    masks = [ir.VectorType(I32, side)(lanes) for lanes in merged]
    for _ in range(side.bit_length() - 1):
        rows = [
            builder.shuffle_vector(rows[i], rows[i + side // 2], mask)
            for i in range(side // 2)
            for mask in masks
        ]
    return rows


@intrinsic
def tile_memory(typing_context):
    """Return the address of memory on the stack for the sums of one tile."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(F32, ROWS * PANEL))
            memory.align = 64
        return builder.ptrtoint(memory, I64)

    return types.int64(), generate


@cache
def copy_run(nbytes: int):
    """Intrinsic: copy `nbytes`, a multiple of 4, and prefetch those `ahead` bytes further on.

    Arguments: the addresses of source and target, multiples of 2; `ahead`.
    """
    type_ = ir.VectorType(F32, nbytes // 4)

    @named_intrinsic(f"copy_run_{nbytes}")
    def copied(typing_context, source, target, ahead):
        def generate(context, builder, signature, arguments):
            source, target, ahead = arguments
            emit = VectorEmitter(builder)
            source, target = emit.pointer(source), emit.pointer(target)
            for line in range(0, nbytes, 64):
                emit.prefetch(emit.moved(source, (ahead, 1), line))
            address = builder.bitcast(target, ir.PointerType(type_))
            builder.store(emit.load(source, type_, 2), address, align=2)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return copied


@intrinsic
def prefetch_rows(typing_context, address, step, rows):
    """Prefetch a tile of results to write: `rows` rows, `step` bytes apart."""

    def generate(context, builder, signature, arguments):
        address, step, rows = arguments
        emit = VectorEmitter(builder)

        def body(k, state):
            for line in range(0, 4 * PANEL, 64):
                emit.prefetch(emit.moved(state[0], line), write=1)
            return [emit.moved(state[0], (step, 1))]

        emit.loop(rows, 1, [emit.pointer(address)], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


# Tiles of the matrix product on a right side that is contiguous along k, in LLVM vector code.
#
# The keys of attention lie that way. Columns are transposed in registers, 16 bytes of each at a
# time, so that a sum adds its products in order of k as in all other tiles: the same bits as if the
# right side had been packed.


_LANES = 4
"""Words in 128 bits, within which vectors are shuffled fastest."""


@cache
def tile_along_k(dtype: str):
    """Intrinsic: `gemm_ir.tile` of 1 to `ROWS` rows and a right side that is contiguous along k.

    `step` counts the bytes from one column of the right side to the next; the other arguments are
    those of `gemm_ir.tile_of_any_height`; only the first address is prefetched.
    """

    @named_intrinsic(f"tile_along_k_{dtype}")
    def micro_kernel(
        typing_context, rows, lhs, rhs, step, count, start, start_row, other, other_row, out, row,
        prefetch, second_prefetch, prefetch_step,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            for height in emit.one_of(wanted, range(1, ROWS + 1)):
                _emit_tile_along_k(emit, rest, height, dtype)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14), generate

    return micro_kernel


def _emit_tile_along_k(emit, arguments, rows, dtype):
    """Emit the code of `rows` x `PANEL` sums of products over `count` values of k."""
    builder = emit.builder
    lhs, rhs, step, count, start, start_row, other, other_row, *rest = arguments
    out, row, prefetch, _, prefetch_step = rest
    sums = [ZERO] * (rows * VECTORS)
    for address, distance in ((start, start_row), (other, other_row)):
        sums = increased(
            emit, sums, address, vector_addresses(emit, address, distance, rows, VECTORS)
        )
    groups = [emit.moved(emit.pointer(rhs), (step, first)) for first in range(0, PANEL, _LANES)]
    state = [emit.pointer(lhs), emit.pointer(prefetch), *groups, *sums]
    chunk = 16 // bytes_of(dtype)
    tail = builder.and_(count, number(chunk - 1))
    for times, steps in ((builder.sub(count, tail), chunk), (tail, 1)):
        body = _products_along_k(emit, rows, dtype, (step, prefetch_step), steps)
        state = emit.loop(times, steps, state, body)
    results = vector_addresses(emit, out, row, rows, VECTORS)
    for value, target in zip(state[2 + len(groups) :], results, strict=True):
        emit.store(value, target)


def _products_along_k(emit, rows, dtype, moves, steps):
    """Return the body of the loop over k: `steps` values, added one after another."""
    step, prefetch_step = moves
    size = bytes_of(dtype)
    read = _columns if steps > 1 else _single_values
    # Without prefetching f32 is 1.2 times as fast, and columns of 2 bytes, half as long, half.
    lines = range(0, steps * size * PANEL, 64) if steps > 1 and dtype != "f32" else ()
    count, side = PANEL // _LANES, WIDTH // _LANES

    def body(k, state):
        lhs, prefetch, groups, sums = state[0], state[1], state[2 : 2 + count], state[2 + count :]
        for line in lines:
            emit.prefetch(emit.moved(prefetch, line), near=2)
        right = [read(emit, groups[i : i + side], step, dtype) for i in range(0, count, side)]
        for j in range(steps):
            for m in range(rows):
                left = emit.splat(emit.load(emit.moved(lhs, 4 * (j * rows + m)), F32, 4))
                for v, columns in enumerate(right):
                    at = m * VECTORS + v
                    sums[at] = emit.multiply_add(left, columns[j], sums[at])
        lhs = emit.moved(lhs, 4 * steps * rows)
        prefetch = emit.moved(prefetch, (prefetch_step, steps))
        return [lhs, prefetch, *(emit.moved(group, steps * size) for group in groups), *sums]

    return body


def _columns(emit, groups, step, dtype):
    """Return 16 bytes of `WIDTH` columns as one vector of f32 for each value of k."""
    b = emit.builder
    quarter = ir.VectorType(F32 if dtype == "f32" else I32, _LANES)
    size = bytes_of(dtype)
    rows = []
    for i in range(_LANES):
        parts = [emit.load(emit.moved(group, (step, i)), quarter, size) for group in groups]
        while len(parts) > 1:
            parts = [
                b.shuffle_vector(low, high, _mask(range(2 * low.type.count)))
                for low, high in zip(parts[::2], parts[1::2], strict=True)
            ]
        rows.append(parts[0])
    (a, c), (d, e) = (_merged(b, *rows[:2], 1), _merged(b, *rows[2:], 1))
    turned = [*_merged(b, a, d, 2), *_merged(b, c, e, 2)]
    if dtype == "f32":
        return turned
    return [half for pair in turned for half in _halves(emit, pair, dtype)]


def _merged(builder, x, y, run):
    """Return the lower and upper halves of each 128 bits of x and y, in turns of `run` words."""
    pairs = []
    for half in range(2):
        lanes = []
        for lane in range(0, WIDTH, _LANES):
            for i in range(0, 2, run):
                at = [lane + 2 * half + i + j for j in range(run)]
                lanes += [*at, *(WIDTH + lane for lane in at)]
        pairs.append(builder.shuffle_vector(x, y, _mask(lanes)))
    return pairs


def _mask(lanes):
    """Return the constant that says which lanes a shuffle takes."""
    lanes = [*lanes]
    return ir.VectorType(I32, len(lanes))(lanes)


def _halves(emit, pair, dtype):
    """Return the f32 of the lower and upper 2 bytes of each word."""
    b = emit.builder
    upper = b.lshr(pair, words(16))
    if dtype == "bf16":
        top = b.and_(pair, words(0xFFFF0000))
        return b.bitcast(b.shl(pair, words(16)), VECTOR), b.bitcast(top, VECTOR)
    lower = b.and_(pair, words(0xFFFF))
    return emit.from_half(lower), emit.from_half(upper)


def _single_values(emit, groups, step, dtype):
    """Return one value of k of `WIDTH` columns, as one vector of f32."""
    b = emit.builder
    found = ir.Constant(VECTOR if dtype == "f32" else ir.VectorType(I32, WIDTH), ir.Undefined)
    for i in range(WIDTH):
        address = emit.moved(groups[i // _LANES], (step, i % _LANES))
        if dtype == "f32":
            value = emit.load(address, F32, 4)
        else:
            value = b.zext(emit.load(address, I16, 2), I32)
        found = b.insert_element(found, value, ir.Constant(I32, i))
    return [found] if dtype == "f32" else [_halves(emit, found, dtype)[0]]
