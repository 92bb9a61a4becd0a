"""Sums of depthwise 3 x 3 convolutions of bytes with VNNI: the column of a window is one product.

A lane holds the three bytes of a channel in one column of a window, and a zero: an instruction adds
three products. Bytes of 64 channels are brought there together, and a column of images is brought
there once for all the windows side by side that it is part of.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.byte_vectors import HAS_DOTS
from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import I8, I16, I32, VECTOR, WIDTH, VectorEmitter, number
from gptrs_backend_numba.kernels.matmul.integer_ir import NEIGHBOURS

HAS_QUADS = HAS_DOTS and WIDTH == 16
"""Whether there are instructions for it."""
SIDE = 3
"""Rows and columns of a window."""
_MOST = 4
"""Vectors of channels together: their bytes fill a register."""
_LANES = 4
_BYTES, _HALVES = ir.VectorType(I8, 64), ir.VectorType(I16, 32)
_WORDS = ir.VectorType(I32, 16)


@cache
def depthwise_quads(stride: int):
    """Intrinsic: the sums of 1 to `NEIGHBOURS` positions of a depthwise convolution, all channels.

    `stride` is that of positions, in columns of windows: 1 or 2.

    Arguments: how many positions; the address of the first byte of the first window; the bytes
    between rows of a window, and between columns; the addresses of the weights, for each column of
    the window and each channel 3 of si8 and a zero, and of what the sums begin with; the channels,
    and the elements from one column or position to the next, a multiple of `WIDTH`; the address of
    the sums, si32.

    Whole vectors of channels are written, and 64 bytes at a time read.
    """

    @named_intrinsic(f"depthwise_quads_{stride}")
    def micro_kernel(
        typing_context, positions, x, row_step, column_step, weight, start, channels, line, out
    ):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            for count in emit.one_of(wanted, range(1, NEIGHBOURS + 1)):
                _emit_neighbours(emit, rest, count, stride)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return micro_kernel


def _emit_neighbours(emit, arguments, positions, stride):
    """Emit blocks of 64 channels, and one of the vectors that are left."""
    channels = arguments[5]
    b = emit.builder
    size = _MOST * WIDTH

    def block(c, _):
        _emit_block(emit, arguments, c, positions, stride, _MOST)
        return []

    whole = b.mul(b.sdiv(channels, number(size)), number(size))
    emit.loop(whole, size, [], block)
    left = b.sdiv(b.add(b.sub(channels, whole), number(WIDTH - 1)), number(WIDTH))
    for vectors in emit.one_of(left, range(1, _MOST + 1)):
        _emit_block(emit, arguments, whole, positions, stride, vectors)


def _emit_block(emit, arguments, c, positions, stride, vectors):
    """Emit the sums of some vectors of channels from channel `c` on."""
    x, row_step, column_step, weight, start, _, line, out = arguments
    b = emit.builder
    x, weight, start, out = (emit.pointer(each) for each in (x, weight, start, out))
    parts = range(vectors)
    begins = [emit.load(emit.moved(start, (c, 4), 4 * WIDTH * v), _WORDS, 4) for v in parts]
    sums = [list(begins) for _ in range(positions)]
    factors = [emit.moved(weight, (line, 4 * tap), (c, 4)) for tap in range(SIDE)]
    for column in range((positions - 1) * stride + SIDE):
        at = emit.moved(x, (column_step, column), (c, 1))
        found = _quads(emit, [emit.moved(at, (row_step, row)) for row in range(SIDE)], vectors)
        for position in range(positions):
            tap = column - position * stride
            if not 0 <= tap < SIDE:
                continue
            for v in parts:
                factor = emit.load(emit.moved(factors[tap], 4 * WIDTH * v), _WORDS, 4)
                operands = [sums[position][v], found[v], factor]
                name = "llvm.x86.avx512.vpdpbusd.512"
                sums[position][v] = call_llvm(b, name, _WORDS, operands)
    for position in range(positions):
        for v in parts:
            target = emit.moved(out, (line, 4 * position), (c, 4), 4 * WIDTH * v)
            emit.store(b.bitcast(sums[position][v], VECTOR), target)


def _quads(emit, rows, vectors):
    """Return vectors of the bytes of three rows in each lane, in the order of channels.

    Instructions that merge bytes do so within 16 of them: the words of a row are moved first so
    that channels come out in order.
    """
    b = emit.builder
    turned = [_LANES * (i % _LANES) + i // _LANES for i in range(WIDTH)]
    moved = []
    for row in rows:
        value = emit.load(row, _WORDS, 1)
        moved.append(b.bitcast(_shuffled(b, value, value, turned), _BYTES))
    first, second, third = moved
    nothing = ir.Constant(_BYTES, [0] * 64)
    found = []
    for half in range((vectors + 1) // 2):
        pairs = [
            b.bitcast(_merged(b, *both, half, 16), _HALVES)
            for both in ((first, second), (third, nothing))
        ]
        found += [b.bitcast(_merged(b, *pairs, part, 8), _WORDS) for part in range(2)]
    return found[:vectors]


def _merged(b, one, other, half, within):
    """Return the elements of halves of each `within` elements of two vectors, in turns."""
    count = one.type.count
    lanes = [
        group + half * within // 2 + i // 2 + (i % 2) * count
        for group in range(0, count, within)
        for i in range(within)
    ]
    return _shuffled(b, one, other, lanes)


def _shuffled(b, one, other, lanes):
    return b.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))
