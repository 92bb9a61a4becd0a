"""Vector loops of the matrix products, in LLVM vector code so that the order of sums is fixed."""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gptrs_backend_numba.kernels.machine import call_llvm

WIDTH = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
"""Floats in a vector register."""
TILE_ROWS = 12 if WIDTH == 16 else 4
"""Rows of the largest tile: with two vectors each, the accumulators fill the registers."""

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_ZERO = ir.Constant(_VECTOR, [0.0] * WIDTH)


class _Emitter:
    """Addresses, vector loads and fused multiply-adds in the function that is being generated."""

    def __init__(self, builder):
        self.builder = builder

    def address(self, base, *offsets):
        """`base` plus element offsets, each a product of its factors."""
        b = self.builder
        for factors in offsets:
            product = _constant(4)
            for factor in factors:
                product = b.mul(product, _constant(factor) if isinstance(factor, int) else factor)
            base = b.add(base, product)
        return base

    def load(self, address, type_):
        return self.builder.load(
            self.builder.inttoptr(address, ir.PointerType(type_)), align=4, typ=type_
        )

    def store(self, value, address):
        pointer = self.builder.inttoptr(address, ir.PointerType(value.type))
        self.builder.store(value, pointer, align=4)

    def splat(self, value):
        b = self.builder
        single = b.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_I32, 0))
        mask = ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH)
        return b.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), mask)

    def fma(self, x, y, z):
        return call_llvm(self.builder, f"llvm.fma.v{WIDTH}f32", _VECTOR, [x, y, z])

    def total(self, value):
        """The sum of the lanes, added in pairs: halves first, so the order never varies."""
        b = self.builder
        width = WIDTH
        while width > 1:
            width //= 2
            lanes = [ir.VectorType(_I32, width)([start + i for i in range(width)])
                     for start in (0, width)]  # fmt: skip
            low, high = (b.shuffle_vector(value, value, half) for half in lanes)
            value = b.fadd(low, high)
        return b.extract_element(value, ir.Constant(_I32, 0))

    def loop(self, count, step, starts, body):
        """`for k in range(0, count, step)` with values carried over; `count` is at least `step`."""
        b = self.builder
        entry = b.block
        head, done = b.append_basic_block("loop"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        k = b.phi(_I64)
        k.add_incoming(_constant(0), entry)
        carried = [b.phi(start.type) for start in starts]
        for phi, start in zip(carried, starts, strict=True):
            phi.add_incoming(start, entry)
        results = body(k, list(carried))
        following = b.add(k, _constant(step))
        k.add_incoming(following, head)
        for phi, result in zip(carried, results, strict=True):
            phi.add_incoming(result, head)
        b.cbranch(b.icmp_signed("<", following, count), head, done)
        b.position_at_end(done)
        return results


def _constant(value):
    return ir.Constant(_I64, value)


def _tile(rows, vectors):
    """Intrinsic: `rows` x `vectors * WIDTH` results, each one chain of fused multiply-adds over k.

    Arguments: address of lhs, its row and k stride; of rhs (unit stride along a row), its k stride;
    of the result, its row stride; the number of k, at least 1. Strides in elements.
    """

    @intrinsic
    def tile(typing_context, lhs, lm, lk, rhs, rk, out, om, count):
        def generate(context, builder, signature, arguments):
            lhs, lm, lk, rhs, rk, out, om, count = arguments
            emit = _Emitter(builder)

            def body(k, sums):
                row = emit.address(rhs, (k, rk))
                right = [
                    emit.load(emit.address(row, (WIDTH * v,)), _VECTOR) for v in range(vectors)
                ]
                for m in range(rows):
                    left = emit.splat(emit.load(emit.address(lhs, (m, lm), (k, lk)), _FLOAT))
                    for v in range(vectors):
                        at = m * vectors + v
                        sums[at] = emit.fma(left, right[v], sums[at])
                return sums

            sums = emit.loop(count, 1, [_ZERO] * (rows * vectors), body)
            for at, value in enumerate(sums):
                m, v = divmod(at, vectors)
                emit.store(value, emit.address(out, (m, om), (WIDTH * v,)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return tile


def _dot_rows(rows):
    """Intrinsic: dot products of one vector with `rows` rows over `count` >= 2 * WIDTH elements.

    Arguments: address of the vector, of the first row, the row stride in elements, the address of
    the results, `count`, a multiple of 2 * WIDTH.
    """

    @intrinsic
    def dot(typing_context, x, rhs, rn, out, count):
        def generate(context, builder, signature, arguments):
            x, rhs, rn, out, count = arguments
            emit = _Emitter(builder)

            def body(k, sums):
                for half in range(2):
                    at = (k,), (half * WIDTH,)
                    left = emit.load(emit.address(x, *at), _VECTOR)
                    for row in range(rows):
                        right = emit.load(emit.address(rhs, (row, rn), *at), _VECTOR)
                        sums[2 * row + half] = emit.fma(left, right, sums[2 * row + half])
                return sums

            sums = emit.loop(count, 2 * WIDTH, [_ZERO] * (2 * rows), body)
            for row in range(rows):
                both = builder.fadd(sums[2 * row], sums[2 * row + 1])
                emit.store(emit.total(both), emit.address(out, (row,)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return dot


EXPORTS = {
    "WIDTH": WIDTH,
    "TILE_ROWS": TILE_ROWS,
    "tile_full": _tile(TILE_ROWS, 2),
    "tile_4x2": _tile(4, 2),
    "tile_1x2": _tile(1, 2),
    "tile_1x8": _tile(1, 8),
    "tile_1x4": _tile(1, 4),
    "tile_1x1": _tile(1, 1),
    "dot_4_rows": _dot_rows(4),
    "dot_1_row": _dot_rows(1),
}
"""The names that kernel sources use."""
