"""Integer sums of products of codes where no instruction adds four of bytes (x86 without VNNI).

Small codes: one instruction multiplies unsigned bytes by signed ones and adds pairs of products, as
16 bits that saturate. Activations are from -127 to 127, so a pair is at most `254 * most` for codes
up to `most`: the sums of so many chunks of 4 as `chunks_together` says stay within 16 bits, and are
exact. Codes of 4 bits are widened once in a block of 32.

Larger codes: pairs of 16 bits, with activations that are rounded to 16 bits, in the order in which
codes lie in halves of words: (0, 2), then (1, 3).
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import FEATURES, I8, I16, I32, WIDTH
from gptrs_backend_numba.kernels.matmul.gemm_ir import VECTORS

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
    4: ("ssse3", "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
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
    """Return codes as they are multiplied: those of even places and of odd ones if wide."""
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


def store_wide(emit, codes, place):
    """Store rounded activations, words, as 16 bits in the order in which they are multiplied."""
    b = emit.builder
    halves = b.trunc(codes, ir.VectorType(I16, WIDTH))
    order = [at + step for at in range(0, WIDTH, 4) for step in (0, 2, 1, 3)]
    lanes = ir.Constant(ir.VectorType(I32, WIDTH), order)
    found = b.shuffle_vector(halves, halves, lanes)
    b.store(found, b.bitcast(place, ir.PointerType(found.type)), 1)
