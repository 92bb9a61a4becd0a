"""Source of the kernel of attention for many queries on the matrix unit.

A task takes panels of queries of one matrix, those of the heads that share keys side by side, and
goes through the keys chunk by chunk, whose parts stay in the L2 cache; see `attention_panels` for
the sums. While scores of one block of keys are multiplied, those of the block before, perhaps of
another panel, become weights. Pairs of keys are consecutive; those of numbers of a key and of a
query are eight apart, which is easier to bring about.

Panels whose sums are not finite are computed again on the vector units: parts make NaN of
infinities, and weights of up to 2^8 overflow earlier.
"""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import load, store, typed_pointer
from gptrs_backend_numba.kernels.amx.attention_ir import (
    raise_peaks,
    scale_panel,
    score_and_weigh,
    weigh_pairs,
)
from gptrs_backend_numba.kernels.amx.attention_layout_ir import (
    are_finite,
    ask_for_rows,
    split_lines,
    split_queries,
    take_means,
    transpose_16,
)
from gptrs_backend_numba.kernels.amx.attention_text import BLOCKS, MEMORY, QUERIES, RESULTS
from gptrs_backend_numba.kernels.amx.attention_text import KEYS as KEYS_AND_VALUES
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    PART_BYTES,
    STEP,
    STEPS,
    TILE_BYTES,
)
from gptrs_backend_numba.kernels.amx.gemm import parts_of
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    AMX_ROWS,
    configure_amx,
    multiply_block,
    release_amx,
)
from gptrs_backend_numba.kernels.attention.geometry import seen_keys, source
from gptrs_backend_numba.kernels.attention.softmax_ir import hide_from_panel

KEYS = 2 * STEP
"""In a block: with the weights and the queries of a panel they stay in the L1 cache."""


def unit_source(dtype: DType, depth: int) -> tuple[str, dict[str, object]]:
    """Tasks of several panels of queries of this type, of `depth` numbers each; and its names."""
    parts, steps = parts_of(dtype), min(STEPS, -(-depth // STEP))
    pairs_a_step = STEP // 2 // steps
    text = source(
        f"    # {steps} steps\n" + MEMORY + QUERIES + KEYS_AND_VALUES + BLOCKS + RESULTS,
        dtype,
        direct=dtype is dtypes.f32,
        K=typed_pointer("row", dtype),
        k=load(dtype, "K[d]"),
        V=typed_pointer(f"row + {2 * dtype.itemsize} * i * G[VS]", dtype),
        v=load(dtype, "V[d]"),
        out=store(dtype, "X[i * wide + e]"),
    )
    names: dict[str, object] = {
        "LEFT_BYTES": PART_BYTES * parts,
        "WEIGHED": steps * pairs_a_step,
        "multiply_block": multiply_block(parts, MOST_PARTS),
        "score": score_and_weigh(parts, 0),
        "score_and_weigh": score_and_weigh(parts, pairs_a_step),
        "split_keys": split_lines(parts, 8),
        "split_values": split_lines(parts, 16),
    }
    return text, {**_NAMES, **names}


_NAMES: dict[str, object] = {
    "BLOCK_BYTES": BLOCK_BYTES,
    "INF": np.float32(np.inf),
    "KEYS": KEYS,
    "LOG2_E": math.log2(math.e),
    "RIGHT_BYTES": MOST_PARTS * BLOCK_BYTES,
    "STEP": STEP,
    "STEPS": STEPS,
    "TILE_BYTES": TILE_BYTES,
    "AMX_ROWS": AMX_ROWS,
    "are_finite": are_finite,
    "ask_for_rows": ask_for_rows,
    "hide_from_panel": hide_from_panel,
    "release_amx": release_amx,
    "raise_peaks": raise_peaks,
    "scale_panel": scale_panel,
    "seen_keys": seen_keys,
    "split_queries": split_queries,
    "take_means": take_means,
    "transpose_16": transpose_16,
    "configure_amx": configure_amx,
    "weigh_pairs": weigh_pairs,
}
