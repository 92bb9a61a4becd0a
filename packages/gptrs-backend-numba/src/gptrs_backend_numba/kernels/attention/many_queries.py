"""Source of the kernel of attention for many queries.

A panel of queries goes through the keys block by block: scores, their powers less the largest so
far, and the values weighed with them; what was summed before is scaled down when a larger score
comes ("online softmax", Milakov and Gimelshein 2018; Dao et al. 2022). Keys that no query of the
panel sees are not read.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import load, store, typed_pointer
from gptrs_backend_numba.kernels.attention.attention_ir import MIX_ROWS, SCORE_ROWS
from gptrs_backend_numba.kernels.attention.attention_ir import NAMES as TILE_NAMES
from gptrs_backend_numba.kernels.attention.geometry import seen_keys, source
from gptrs_backend_numba.kernels.attention.softmax_ir import NAMES as SOFTMAX_NAMES

BLOCK = 48
"""Keys in a block: with a panel of their scores they stay in the L1 cache."""

_PANELS = """
    panels = (columns + PANEL - 1) // PANEL
    matrix = task // panels
    first = (task - matrix * panels) * PANEL
    batch = matrix // G[HEADS]
    head = matrix - batch * G[HEADS]
    held = np.empty(PANEL * (depth + width + BLOCK + 4) + {wide} * BLOCK * (depth + width) + 16,
                    np.float32)
    queries = (held.ctypes.data + 63) // 64 * 64
    sums = queries + 4 * PANEL * depth
    scores = sums + 4 * PANEL * width
    lanes = scores + 4 * PANEL * BLOCK
    factors = lanes + 4 * PANEL
    peaks, totals = factors + 4 * PANEL, factors + 8 * PANEL
    wide_keys = totals + 4 * PANEL
    wide_values = wide_keys + 4 * BLOCK * depth
    X, A, W = pointer(queries, np.float32), pointer(sums, np.float32), pointer(scores, np.float32)
    L = pointer(lanes, np.int32)
    peak, total = pointer(peaks, np.float32), pointer(totals, np.float32)
    Q = {Q}
    most, least = np.int64(0), size
    # Four queries at a time, if they are evenly apart: consecutive ones, or heads of one.
    even = {squares} and (group == 1 or group % 4 == 0)
    q_step, o_step = (G[QT], G[OT]) if group == 1 else (G[QH], G[OH])
    squared = depth - depth % 4 if even else 0
    for i in range(PANEL):
        L[i] = size
        peak[i], total[i] = -INF, 0.0
        c = first + i
        if c < columns:
            t = c // group
            seen = seen_keys(G[CAUSAL], G[GIVEN], G[AHEAD], P, t, size)
            L[i] = seen
            most, least = max(most, seen), min(least, seen)
            place = batch * G[QB] + (head * group + c - t * group) * G[QH] + t * G[QT]
            done = np.int64(0)
            if i // 4 * 4 + 4 <= columns - first:
                done = squared
                if i % 4 == 0:
                    for d in range(0, squared, 4):
                        transpose_4(query + 4 * (place + d), 4 * q_step,
                                    queries + 4 * (d * PANEL + i), 4 * PANEL)
            for d in range(done, depth):
                X[d * PANEL + i] = {q}
        else:
            for d in range(depth):
                X[d * PANEL + i] = 0.0
    for i in range(depth * PANEL):
        X[i] = X[i] * scale
    for i in range(width * PANEL):
        A[i] = 0.0
    keys = key + {size} * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + {size} * (batch * G[VB] + head * G[VH])
    for begin in range(0, most, BLOCK):
        count = min(BLOCK, most - begin)
        K, k_step = keys + {size} * begin * G[KS], {size} * G[KS]
        V, v_step = values + {size} * begin * G[VS], {size} * G[VS]
{widen}
        row = np.int64(0)
{score_tiles}
        if begin + count > least:
            hide_from_panel(scores, count, lanes, begin)
        if G[MASKED]:
            for i in range(min(PANEL, columns - first)):
                t = (first + i) // group
                place = batch * G[MB] + (head * group + first + i - t * group) * G[MH] + t * G[MT]
                for j in range(count):
                    if HIDDEN[place + (begin + j) * G[MS]] == 0:
                        W[j * PANEL + i] = -INF
        weigh_panel(scores, count, peaks, totals, factors)
        row = np.int64(0)
{mix_tiles}
    for i in range(PANEL):
        total[i] = divide(np.float32(1.0), total[i])
    for e in range(width):
        for i in range(PANEL):
            A[e * PANEL + i] = A[e * PANEL + i] * total[i]
    O = {O}
    squared = width - width % 4 if even else 0
    for i in range(min(PANEL, columns - first)):
        t = (first + i) // group
        place = batch * G[OB] + t * G[OT] + (head * group + first + i - t * group) * G[OH]
        done = np.int64(0)
        if i // 4 * 4 + 4 <= columns - first:
            done = squared
            if i % 4 == 0:
                for e in range(0, squared, 4):
                    transpose_4(sums + 4 * (e * PANEL + i), 4 * PANEL,
                                out + 4 * (place + e), 4 * o_step)
        for e in range(done, width):
            O[place + e] = {out}
    held[0] = 0  # known to the loops by address only
    return 0
"""

_WIDEN = """
        WK, WV = pointer(wide_keys, np.float32), pointer(wide_values, np.float32)
        for j in range(count):
            R = {row_k}
            for d in range(depth):
                WK[j * depth + d] = {element}
            R = {row_v}
            for e in range(width):
                WV[j * width + e] = {value}
        K, k_step = wide_keys, 4 * depth
        V, v_step = wide_values, 4 * width
"""


def panels_source(dtype: DType) -> str:
    """Tasks of `PANEL` queries, those of the heads that share keys side by side."""
    narrow = dtype is not dtypes.f32
    widen = _WIDEN.format(
        row_k=typed_pointer("K + j * k_step", dtype),
        row_v=typed_pointer("V + j * v_step", dtype),
        element=load(dtype, "R[d]"),
        value=load(dtype, "R[e]"),
    )
    score = "score_tile_{0}(K + row * k_step, k_step, queries, scores + 4 * PANEL * row, depth)"
    mix = "mix_tile_{0}(V + 4 * row, v_step, scores, factors, sums + 4 * PANEL * row, count)"
    return source(
        _PANELS,
        dtype,
        wide=int(narrow),
        squares=not narrow,
        widen=widen if narrow else "",
        score_tiles=_tiles(SCORE_ROWS, score, "count"),
        mix_tiles=_tiles(MIX_ROWS, mix, "width"),
        out=store(dtype, "A[e * PANEL + i]"),
    )


def _tiles(heights: tuple[int, ...], call: str, end: str) -> str:
    """The tiles from the largest to the smallest, each while it fits."""
    lines: list[str] = []
    for rows in heights:
        lines += [
            f"        while row + {rows} <= {end}:",
            f"            {call.format(rows)}",
            f"            row += {rows}",
        ]
    return "\n".join(lines)


NAMES: dict[str, object] = {
    **TILE_NAMES,
    **SOFTMAX_NAMES,
    "BLOCK": BLOCK,
    "INF": np.float32(np.inf),
    "seen_keys": seen_keys,
}
"""Additional names of the source."""
