"""The transforms of Winograd's algorithms F(2x2, 3x3) and F(4x4, 3x3), a lane for each channel.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (2016). A tile `d` of 4x4 or 6x6
numbers becomes `B^T d B`, is multiplied element by element by transformed weights, and the sums
`m` over the channels become 2x2 or 4x4 results `A^T m A`.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import I64, VECTOR, WIDTH, VectorEmitter
from gptrs_backend_numba.kernels.convolution.direct_ir import (
    Epilogue,
    masked_load,
    masked_store,
    masks_of,
)


class _Vectors:
    """Arithmetic on vectors."""

    def __init__(self, emit):
        self.add, self.sub = emit.builder.fadd, emit.builder.fsub
        self._emit = emit

    def times(self, factor, x, added):
        """Return `factor * x + added`."""
        constant = ir.Constant(VECTOR, [float(factor)] * WIDTH)
        return self._emit.multiply_add(x, constant, added)


def _before_4(v, d):
    """Return `B^T d` of six vectors."""
    even, odd = v.times(-4, d[2], d[4]), v.times(-4, d[1], d[3])
    near, far = v.sub(d[4], d[2]), v.sub(d[3], d[1])
    return [
        v.times(4, d[0], v.times(-5, d[2], d[4])),
        v.add(even, odd),
        v.sub(even, odd),
        v.times(2, far, near),
        v.times(-2, far, near),
        v.times(4, d[1], v.times(-5, d[3], d[5])),
    ]


def _after_4(v, m):
    """Return `A^T m` of six vectors."""
    p, q = v.add(m[1], m[2]), v.sub(m[1], m[2])
    r, s = v.add(m[3], m[4]), v.sub(m[3], m[4])
    return [
        v.add(v.add(m[0], p), r),
        v.times(2, s, q),
        v.times(4, r, p),
        v.add(v.times(8, s, q), m[5]),
    ]


def _before_2(v, d):
    """Return `B^T d` of four vectors."""
    return [v.sub(d[0], d[2]), v.add(d[1], d[2]), v.sub(d[2], d[1]), v.sub(d[1], d[3])]


def _after_2(v, m):
    """Return `A^T m` of four vectors."""
    return [v.add(v.add(m[0], m[1]), m[2]), v.sub(v.sub(m[1], m[2]), m[3])]


_BEFORE, _AFTER = {2: _before_2, 4: _before_4}, {2: _after_2, 4: _after_4}


def _both_ways(v, transform, columns):
    """Apply `transform` to each column, then to each row of the result; return the rows."""
    half = [transform(v, column) for column in columns]
    return [transform(v, list(row)) for row in zip(*half, strict=True)]


def _address(emit, table, position):
    return emit.pointer(emit.load(emit.moved(table, 8 * position), I64, 8))


@cache
def winograd_before(side: int):
    """Intrinsic: `B^T d B` of one tile with `side` x `side` results, all channels.

    Arguments: the address of a table with the addresses of the positions of the image, row by row;
    of the first result, and the bytes to each next one; the number of channels.
    """
    seen = side + 2

    @named_intrinsic(f"winograd_before_{side}")
    def transform(typing_context, table, out, step, channels):
        def generate(context, builder, signature, arguments):
            table, out, step, channels = arguments
            emit = VectorEmitter(builder)
            table, out, v = emit.pointer(table), emit.pointer(out), _Vectors(emit)

            def body(c, _):
                places = [emit.moved(_address(emit, table, p), (c, 4)) for p in range(seen**2)]
                first = emit.moved(out, (c, 4))
                for (mask,) in masks_of(emit, builder.sub(channels, c)):
                    columns = [
                        [masked_load(emit, places[seen * i + j], mask) for i in range(seen)]
                        for j in range(seen)
                    ]
                    place = first
                    for row in _both_ways(v, _BEFORE[side], columns):
                        for value in row:
                            masked_store(emit, value, place, mask)
                            place = emit.moved(place, (step, 1))
                return []

            emit.loop(channels, WIDTH, [], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transform


@cache
def winograd_after(side: int):
    """Intrinsic: `A^T m A` of one tile and the epilogue, all channels.

    Arguments: the address of the first sum, and the bytes to each next one; the number of channels;
    addresses of the scale and the shift; of a table of the addresses of the positions of the
    residual, or 0; of the two bounds; of a table of the addresses of the results.
    """
    seen = side + 2

    @named_intrinsic(f"winograd_after_{side}")
    def transform(typing_context, sums, step, channels, scale, shift, residuals, bounds, outs):
        def generate(context, builder, signature, arguments):
            sums, step, channels, scale, shift, residuals, bounds, outs = arguments
            emit = VectorEmitter(builder)
            sums, scale, shift, bounds, outs = (
                emit.pointer(address) for address in (sums, scale, shift, bounds, outs)
            )
            v = _Vectors(emit)

            def block(c, mask):
                first = emit.moved(sums, (c, 4))
                columns = [
                    [
                        masked_load(emit, emit.moved(first, (step, seen * i + j)), mask)
                        for i in range(seen)
                    ]
                    for j in range(seen)
                ]
                values = [x for row in _both_ways(v, _AFTER[side], columns) for x in row]
                own = (emit.moved(pointer, (c, 4)) for pointer in (scale, shift))
                epilogue = Epilogue(emit, *own, residuals, bounds)

                def place_in(table):
                    return lambda i: emit.moved(_address(emit, table, i), (c, 4))

                added = place_in(emit.pointer(residuals))
                epilogue.finish(values, [0] * len(values), {0: mask}, place_in(outs), added)

            def body(c, _):
                for (mask,) in masks_of(emit, builder.sub(channels, c)):
                    block(c, mask)
                return []

            emit.loop(channels, WIDTH, [], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return transform
