"""Tiles of the matrix product on a right side that is contiguous along k, in LLVM vector code.

The keys of attention lie that way. Columns are transposed in registers, 16 bytes of each at a time,
so that a sum adds its products in order of k as in all other tiles: the same bits as if the right
side had been packed.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I16,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
    number,
    words,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, VECTORS, increased, places

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
                _emit_tile(emit, rest, height, dtype)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14), generate

    return micro_kernel


def _emit_tile(emit, arguments, rows, dtype):
    """Emit the code of `rows` x `PANEL` sums of products over `count` values of k."""
    builder = emit.builder
    lhs, rhs, step, count, start, start_row, other, other_row, *rest = arguments
    out, row, prefetch, _, prefetch_step = rest
    sums = [ZERO] * (rows * VECTORS)
    for address, distance in ((start, start_row), (other, other_row)):
        sums = increased(emit, sums, address, places(emit, address, distance, rows, VECTORS))
    groups = [emit.moved(emit.pointer(rhs), (step, first)) for first in range(0, PANEL, _LANES)]
    state = [emit.pointer(lhs), emit.pointer(prefetch), *groups, *sums]
    chunk = 16 // bytes_of(dtype)
    tail = builder.and_(count, number(chunk - 1))
    for times, steps in ((builder.sub(count, tail), chunk), (tail, 1)):
        body = _products(emit, rows, dtype, (step, prefetch_step), steps)
        state = emit.loop(times, steps, state, body)
    results = places(emit, out, row, rows, VECTORS)
    for value, place in zip(state[2 + len(groups) :], results, strict=True):
        emit.store(value, place)


def _products(emit, rows, dtype, moves, steps):
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
                lanes += [*at, *(WIDTH + place for place in at)]
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
        place = emit.moved(groups[i // _LANES], (step, i % _LANES))
        if dtype == "f32":
            value = emit.load(place, F32, 4)
        else:
            value = b.zext(emit.load(place, I16, 2), I32)
        found = b.insert_element(found, value, ir.Constant(I32, i))
    return [found] if dtype == "f32" else [_halves(emit, found, dtype)[0]]
