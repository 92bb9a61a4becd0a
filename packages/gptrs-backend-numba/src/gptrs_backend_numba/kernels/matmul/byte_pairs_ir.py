"""Tiles of products of 8-bit integers by sums of two products in 16 bits; for AVX2.

`vpmaddubsw` multiplies bytes as they are, and its sums of two saturate. They cannot where two
neighbours along k of one sign add up to at most 128: 255 * 128 < 2^15. Most weights are so, as the
largest of them decides the scale. Steps of a panel with others are split: what is too much follows
the panel, in spare steps, which are multiplied, too. That takes 3 instructions where pairs of 16
bits take 4, and widens nothing.

Behind the sums of its columns such a panel has a line that begins with the number of spare steps
in use, -1 if there are too few, and spare steps of two lines: one begins with the step that it
belongs to, the other has its codes.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import kernel_part
from gptrs_backend_numba.codegen.machine import call_llvm, pointer
from gptrs_backend_numba.codegen.vector_ir import I32, I64, WIDTH, number
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, VECTORS
from gptrs_backend_numba.kernels.matmul.integer_ir import (
    BYTE_PAIRS,
    BYTES,
    FOUR,
    HALVES,
    PAIRS,
    STEP_BYTES,
    USES_PAIRS,
    WORDS,
    first_sums,
    splat_word,
    store_sums,
    sums_of_runs,
    tile_intrinsic,
)

HAS_BYTE_PAIRS: Final = USES_PAIRS and WIDTH == 8
"""True where panels have spare steps."""
LARGEST_PAIR: Final = 128
"""Most that two neighbours of one sign add up to."""
_HALF: Final = LARGEST_PAIR // 2
_SPARE_BYTES: Final = 2 * STEP_BYTES
_STEPS_OF_SPARE: Final = 32
"""Normally distributed weights with one scale need a spare step in 60; these are 6 % of memory."""


@register_jitable
def spare_steps(depth: int) -> int:
    """Return how many spare steps a panel of `depth` values of k has."""
    return depth // (_STEPS_OF_SPARE * FOUR) + 2


def panel_bytes(depth: int) -> int:
    """Return the bytes of a panel: codes of `depth` values of k, sums of columns, spare steps."""
    size = PANEL * depth + STEP_BYTES
    if HAS_BYTE_PAIRS:
        size += STEP_BYTES + spare_steps(depth) * _SPARE_BYTES
    return size


register_jitable(panel_bytes)


@kernel_part
def count_split(panel, depth, count):
    """Return how many of `count` panels are split."""
    found = np.int64(0)
    for _ in range(count):
        used = pointer(panel + PANEL * depth + STEP_BYTES, np.int32)[0]
        found += np.int64(used >= 0)
        panel += panel_bytes(depth)
    return found


@kernel_part
def split_panel(panel, depth):
    """Split the steps of a packed panel that need it, if there are enough spare ones."""
    line = panel + PANEL * depth + STEP_BYTES
    used, most = np.int32(0), np.int32(spare_steps(depth))
    for step in range(depth // FOUR):
        C, fits = pointer(panel + step * STEP_BYTES, np.int8), True
        for j in range(STEP_BYTES // 2):
            first, second = np.int32(C[2 * j]), np.int32(C[2 * j + 1])
            # Signs that differ take from each other what they add.
            alone = (first < 0) != (second < 0)
            fits &= alone | (abs(first + second) <= LARGEST_PAIR)
        if not fits:
            if used < most:
                pointer(line + STEP_BYTES + used * _SPARE_BYTES, np.int32)[0] = np.int32(step)
            used += np.int32(1)
    for each in range(used if used <= most else np.int32(0)):
        spare = line + STEP_BYTES + each * _SPARE_BYTES
        step = np.int64(pointer(spare, np.int32)[0])
        C, S = pointer(panel + step * STEP_BYTES, np.int8), pointer(spare + STEP_BYTES, np.int8)
        for j in range(STEP_BYTES // 2):
            first, second = np.int32(C[2 * j]), np.int32(C[2 * j + 1])
            kept, other = first, second
            if (first < 0) == (second < 0) and abs(first + second) > LARGEST_PAIR:
                kept = max(-_HALF, min(first, _HALF))
                other = max(-LARGEST_PAIR - kept, min(second, LARGEST_PAIR - kept))
            C[2 * j], C[2 * j + 1] = np.int8(kept), np.int8(other)
            S[2 * j], S[2 * j + 1] = np.int8(first - kept), np.int8(second - other)
    pointer(line, np.int32)[0] = used if used <= most else np.int32(-1)


@cache
def byte_pair_tile():
    """Intrinsic: `integer_ir.integer_tile` of 1 to `ROWS` rows, for a split panel."""
    return tile_intrinsic("byte_pair_tile", ROWS, _emit_tile)


def _emit_tile(emit, arguments, rows):
    """Emit the code of a tile of `rows` rows."""
    left, step, line, runs, _, count, start, out = arguments
    b = emit.builder

    def several(_, state):
        x, w, *sums = state
        sums = _with_products(emit, (x, step), w, sums)
        return [emit.moved(x, FOUR), emit.moved(w, STEP_BYTES), *sums]

    def steps(state):
        return emit.loop(count, 1, state, several)

    def run_of(at):
        """Return the run of a step; that of the only run without a division."""
        here = b.block
        with b.if_then(b.icmp_signed(">", runs, number(1))):
            run, there = b.sdiv(at, count), b.block
        found = b.phi(I64)
        found.add_incoming(number(0), here)
        found.add_incoming(run, there)
        return found

    def spare(_, state):
        w, *sums = state
        at = b.sext(emit.load(w, I32, 4), I64)
        before = run_of(at)
        within = b.sub(at, b.mul(before, count))
        x = emit.moved(emit.pointer(left), (b.mul(before, line), 1), (within, FOUR))
        sums = _with_products(emit, (x, step), emit.moved(w, STEP_BYTES), sums)
        return [emit.moved(w, _SPARE_BYTES), *sums]

    end, sums = sums_of_runs(emit, arguments, first_sums(emit, start, rows), steps)
    marks = emit.moved(end, STEP_BYTES)
    used = b.sext(emit.load(marks, I32, 4), I64)
    _, *found = emit.loop(used, 1, [emit.moved(marks, STEP_BYTES), *sums], spare)
    store_sums(emit, found, len(found), rows, out)


def _with_products(emit, left, w, sums):
    """Return the sums plus the products of `FOUR` values of k."""
    b = emit.builder
    x, step = left
    ones = ir.Constant(HALVES, [1] * (2 * WIDTH))
    columns = [
        b.bitcast(emit.load(emit.moved(w, 4 * WIDTH * v), WORDS, 4), BYTES) for v in range(VECTORS)
    ]
    made = []
    for row in range(len(sums) // VECTORS):
        four = splat_word(b, emit.load(emit.moved(x, (step, row)), I32, 1))
        for v, column in enumerate(columns):
            codes = [b.bitcast(four, BYTES), column]
            twos = call_llvm(b, f"llvm.x86.{BYTE_PAIRS}", HALVES, codes)
            fours = call_llvm(b, f"llvm.x86.{PAIRS}", WORDS, [twos, ones])
            made.append(b.add(sums[row * VECTORS + v], fours))
    return made
