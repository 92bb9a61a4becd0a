"""The inner loops of convolutions on AMX in LLVM vector code.

As in `bf16x3_ir` an f32 is the sum of three bf16, and six of the nine products of such parts
count. The left side lies in planes: for each step of `STEP` channels and each part a plane with a
cache line for each position of the image, so that neighbouring positions are a tile as they lie.
The right side are columns of f32, `WIDTH` outputs each. While AMX multiplies a step of
a column with four tiles of positions, the vector units split the next one: parts of weights never
leave the nearest cache, and weights come from memory with four bytes each.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    I64,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    MOST_PARTS,
    STEP,
    TILE_BYTES,
    VOID,
    bits_of_parts,
    load_tile,
    paired_parts,
    store_tile,
    tile_register,
)
from gptrs_backend_numba.kernels.convolution.direct import (
    Epilogue,
    lanes_below,
    masked_load,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import rounded_bits

LINE = 64
"""Bytes of a step of one part of one position."""
_TILES = 4
"""Most tiles of a block: `TILE_ROWS` positions and a register for sums each."""
TILE_ROWS = 16
BLOCK = _TILES * TILE_ROWS
"""Positions of a block of sums."""
SUMS_BYTES = 4 * BLOCK * WIDTH
"""Bytes of the sums of a block for one column."""
_LEFT, _REGISTERS = 4, 8
"""Registers of `rounded_block`: from the first on tiles of positions, at the end the weight."""
_RIGHT = 6
"""The first of two registers for parts of the right side; those before it that hold no sums are for
tiles of the left side."""
_PATH = ((2, (0,)), (1, (0, 1)), (0, (0, 1)), (0, (2,)))
"""Parts of the left side, and those of the right one that they are multiplied with meanwhile."""
_PAIRS = STEP // 2
"""Pairs of vectors in a step of a column."""
STEP_BYTES = 4 * STEP * WIDTH
"""Bytes of a step of a column."""
PARTS_BYTES = TILE_BYTES * MOST_PARTS
"""Bytes of the parts of such a step."""
_ROWS_AT_ONCE = 8
_AHEAD = 32 * 1024
"""Bytes between what is split and what the memory is asked for."""


def conv_block(tiles: int):
    """Intrinsic: the sums of `tiles` tiles of positions for a column, `count` steps of products.

    Arguments: the address of the first position in the first plane, the bytes of a plane, the
    address of a table with the bytes from there to the plane and position of each step; of the
    column, and of the one that comes next; of the parts of the first step, which is split already,
    and of the second one: the next column's will replace the first if the count is even; the
    count; and of the sums, `WIDTH` numbers a row.
    """

    @intrinsic
    def multiply(typing_context, left, plane, table, source, following, parts, other, count, out):
        def generate(context, builder, signature, arguments):
            left, plane, table, source, following, parts, other, count, out = arguments
            emit = VectorEmitter(builder)
            left, table, source, following, parts, other, out = (
                emit.pointer(x) for x in (left, table, source, following, parts, other, out)
            )
            for register in range(tiles):
                call_llvm(builder, "llvm.x86.tilezero", VOID, [tile_register(register)])
            last = builder.sub(count, number(1))

            def body(k, state):
                source, this, other = state
                source = emit.moved(source, STEP_BYTES)
                is_last = builder.icmp_signed("==", k, last)
                splits = builder.select(is_last, following, source)
                offset = emit.load(emit.moved(table, (k, 8)), I64, 8)
                # Weights are f32 in memory and split while AMX multiplies: with parts there, which
                # take 6 bytes instead of 4, a 3x3 layer of 7x7x512 takes 1.65 ms, not 1.12.
                pairs = [partial(_split_pair, emit, splits, other, pair) for pair in range(_PAIRS)]
                _products(emit, tiles, (emit.moved(left, (offset, 1)), plane), this, pairs)
                return [source, other, this]

            emit.loop(count, 1, [source, parts, other], body)
            for register in range(tiles):
                store_tile(emit, register, emit.moved(out, TILE_BYTES * register), number(LINE))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return multiply


@cache
def rounded_block(tiles: int, columns: int):
    """Intrinsic: the same sums of numbers that are rounded to bf16, for one or two columns.

    Arguments: the address of the first position in the first plane; of a table with the bytes from
    there to the plane and position of each step; of the columns, a tile for each step; the count;
    and of the sums, `WIDTH` numbers a row, `SUMS_BYTES` for a column.
    """
    together = _TILES // columns

    @named_intrinsic(f"rounded_block_{tiles}_{columns}")
    def multiply(typing_context, left, table, source, count, out):
        def generate(context, builder, signature, arguments):
            left, table, source, count, out = arguments
            emit = VectorEmitter(builder)
            left, table, source, out = (emit.pointer(x) for x in (left, table, source, out))
            for first in range(0, tiles, together):
                begin = emit.moved(left, TILE_BYTES * first)
                some = min(together, tiles - first)
                _rounded_sums(emit, (some, columns), begin, table, source, count, first == 0)
                for tile, column in product(range(some), range(columns)):
                    target = emit.moved(out, SUMS_BYTES * column + TILE_BYTES * (first + tile))
                    store_tile(emit, columns * tile + column, target, number(LINE))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return multiply


def _rounded_sums(emit, kind, left, table, source, count, prefetches):
    """Emit the sums of some tiles and columns in registers: those of a tile are neighbours."""
    tiles, columns = kind
    b, right = emit.builder, _REGISTERS - columns
    for register in range(tiles * columns):
        call_llvm(b, "llvm.x86.tilezero", VOID, [tile_register(register)])

    def body(k, sources):
        for column, source in enumerate(sources):
            load_tile(emit, right + column, source, number(LINE))
            # Weights come from memory once, and nothing else asks for them ahead.
            for line in range(TILE_ROWS if prefetches else 0):
                emit.prefetch(emit.moved(source, _AHEAD // 2 + LINE * line), near=2)
        offset = emit.load(emit.moved(table, (k, 8)), I64, 8)
        positions = emit.moved(left, (offset, 1))
        for tile in range(tiles):
            at = _LEFT + tile % (right - _LEFT)
            load_tile(emit, at, emit.moved(positions, TILE_BYTES * tile), number(LINE))
            for column in range(columns):
                registers = (columns * tile + column, at, right + column)
                call_llvm(b, "llvm.x86.tdpbf16ps", VOID, [tile_register(x) for x in registers])
        return [emit.moved(source, TILE_BYTES) for source in sources]

    starts = [source]
    if columns == 2:
        starts.append(emit.moved(source, (count, TILE_BYTES)))
    emit.loop(count, 1, starts, body)


def _order(tiles):
    """Return the products of a step: tile, its part, the weight's part, the register for the tile.

    As many tiles as there are registers for are multiplied with one part of the weights, then with
    the other one.
    """
    registers = _RIGHT - tiles
    for part, weights in _PATH:
        for first in range(0, tiles, registers):
            for weight in weights:
                for tile in range(first, min(first + registers, tiles)):
                    yield tile, part, weight, tiles + tile - first


def _products(emit, tiles, left, right, others):
    """Emit the six products of a step, with a share of the other work after each instruction.

    `left` are the pointer to the first plane and the bytes of a plane.
    """
    held = {}

    def load(register, what, pointer):
        if held.get(register) != what:
            load_tile(emit, register, pointer, number(LINE))
        held[register] = what

    order = list(_order(tiles))
    for done, (tile, part, weight, register) in enumerate(order):
        at = _RIGHT + weight % 2
        load(at, weight, emit.moved(right, TILE_BYTES * weight))
        load(register, (part, tile), emit.moved(left[0], (left[1], part), TILE_BYTES * tile))
        registers = [tile_register(x) for x in (tile, register, at)]
        call_llvm(emit.builder, "llvm.x86.tdpbf16ps", VOID, registers)
        begin, end = (len(others) * turn // len(order) for turn in (done, done + 1))
        for other in others[begin:end]:
            other()


def _split_pair(emit, source, target, pair):
    """Emit the split of two vectors of a column into a line of each part."""
    addresses = [emit.moved(source, 2 * LINE * pair + LINE * half) for half in range(2)]
    for address in addresses:
        emit.prefetch(emit.moved(address, _AHEAD), near=2)
    values = (emit.load(address, VECTOR, 64) for address in addresses)
    both = (bits_of_parts(emit, value, MOST_PARTS, rounds=False) for value in values)
    # Two steps of parts stay in the L1 cache: a store that misses it takes 13 cycles.
    for part, word in enumerate(paired_parts(emit, *both)):
        emit.store(word, emit.moved(target, TILE_BYTES * part + LINE * pair))


@intrinsic
def split_step(typing_context, source, target):
    """Split the first step of a column. Arguments: the addresses of the step and of its parts."""

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        source, target = (emit.pointer(x) for x in arguments)
        for pair in range(_PAIRS):
            _split_pair(emit, source, target, pair)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 2), generate


@cache
def split_line(parts: int):
    """Intrinsic: a line of an image in planes of `parts`, with zeros before and after it.

    A single part is rounded to the nearest bf16. Arguments: the address of the first position, the
    bytes to each next one; the channels; the address of the first position in the first plane, the
    bytes of a plane; how many positions there are before, of the line, and after.
    """

    @named_intrinsic(f"split_line_{parts}")
    def split(typing_context, source, step, channels, target, plane, before, count, after):
        def generate(context, builder, signature, arguments):
            source, step, channels, target, plane, before, count, after = arguments
            emit = VectorEmitter(builder)
            source, target = emit.pointer(source), emit.pointer(target)

            def zeros(_, state):
                (address,) = state
                for part in range(parts):
                    emit.store(ZERO, emit.moved(address, (plane, part)))
                return [emit.moved(address, LINE)]

            def body(channel, state):
                (target,) = state
                (address,) = emit.loop(before, 1, [target], zeros)
                left = builder.sub(channels, channel)
                masks = [lanes_below(emit, builder.sub(left, number(at))) for at in (0, WIDTH)]

                def position(_, state):
                    source, address = state
                    low, high = (
                        masked_load(emit, emit.moved(source, 4 * WIDTH * half), mask)
                        for half, mask in enumerate(masks)
                    )
                    pairs = paired_parts(emit, *(_parts(emit, x, parts) for x in (low, high)))
                    for part, pair in enumerate(pairs):
                        emit.store(pair, emit.moved(address, (plane, part)))
                    return [emit.moved(source, (step, 1)), emit.moved(address, LINE)]

                start = emit.moved(source, (channel, 4))
                _, address = emit.loop(count, 1, [start, address], position)
                emit.loop(after, 1, [address], zeros)
                return [emit.moved(target, (plane, parts))]

            emit.loop(channels, STEP, [target], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return split


def _parts(emit, value, parts):
    """Return the bits of the parts of a vector, in upper halves of words."""
    if parts == 1:
        return [rounded_bits(emit, value)]
    return bits_of_parts(emit, value, parts)


@intrinsic
def finish_rows(typing_context, sums, count, width, scale, shift, residual, bounds, out, row):
    """Turn some rows of sums, `WIDTH` numbers each, into rows of the result.

    Arguments: the address of the sums; how many rows; how many channels are left; addresses of the
    scale, the shift, the residual or 0, the two bounds and the result; the bytes from one row of
    the result to the next, the same in the residual. The result is 0 unless a sum is NaN.
    """

    def generate(context, builder, signature, arguments):
        sums, count, width, scale, shift, residual, bounds, out, row = arguments
        emit = VectorEmitter(builder)
        sums, scale, shift, bounds, out, added = (
            emit.pointer(x) for x in (sums, scale, shift, bounds, out, residual)
        )
        masks = {0: lanes_below(emit, width)}
        epilogue = Epilogue(emit, scale, shift, residual, bounds)

        def rows(at_once):
            def body(_, state):
                sums, added, out, odd = state
                values = [emit.load(emit.moved(sums, LINE * i), VECTOR, 64) for i in range(at_once)]
                for pair in zip(values[::2], values[1::2] or values, strict=True):
                    odd = builder.or_(odd, builder.fcmp_unordered("uno", *pair))

                def address_in(base):
                    return lambda i: emit.moved(base, (row, i))

                epilogue.finish(values, [0] * at_once, masks, address_in(out), address_in(added))
                moved = [emit.moved(address, (row, at_once)) for address in (added, out)]
                return [emit.moved(sums, LINE * at_once), *moved, odd]

            return body

        rest = builder.and_(count, number(_ROWS_AT_ONCE - 1))
        whole = builder.sub(count, rest)
        none = ir.Constant(ir.VectorType(ir.IntType(1), WIDTH), None)
        starts = [sums, added, out, none]
        state = emit.loop(whole, _ROWS_AT_ONCE, starts, rows(_ROWS_AT_ONCE))
        odd = emit.loop(rest, 1, state, rows(1))[3]
        return builder.zext(builder.bitcast(odd, ir.IntType(WIDTH)), I64)

    return types.int64(*[types.int64] * 9), generate


@intrinsic
def round_rows(typing_context, low, high, count, out):
    """Round rows of sums of two columns, `WIDTH` numbers each, to lines of a plane.

    Arguments: the addresses of the sums of both columns, how many rows, the address of the lines.
    """

    def generate(context, builder, signature, arguments):
        low, high, count, out = arguments
        emit = VectorEmitter(builder)

        def body(_, state):
            low, high, out = state
            both = ([rounded_bits(emit, emit.load(x, VECTOR, 64))] for x in (low, high))
            for line in paired_parts(emit, *both):
                emit.store(line, out)
            return [emit.moved(x, LINE) for x in (low, high, out)]

        emit.loop(count, 1, [emit.pointer(x) for x in (low, high, out)], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
