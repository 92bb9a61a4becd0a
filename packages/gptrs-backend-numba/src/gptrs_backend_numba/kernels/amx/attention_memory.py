"""Sizes and memory of a task of attention with AMX."""

from __future__ import annotations

from typing import NamedTuple

from gptrs_backend_numba.codegen.kernel import kernel_part
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    STEP,
    STEPS,
    TILE_BYTES,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import AMX_ROWS
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

KEYS = 2 * STEP
"""Keys in a block: with the probabilities and the queries of a panel they stay in the L1 cache."""
RIGHT_BYTES = MOST_PARTS * BLOCK_BYTES
"""Bytes of `STEPS` steps of a panel of queries, or of probabilities of `STEPS` steps of keys."""
PANEL_STATE_BYTES = 12 * PANEL
"""Bytes of a panel: int32 numbers of visible keys, f32 maxima of scores, f32 sums of powers."""


class Panels(NamedTuple):
    """The panels of a task: every `step`-th of the queries of a matrix, from `first` on.

    A matrix is the keys or values of one head of one sequence; its queries are those of the `group`
    heads that share them, `columns` in all. Query i belongs to the token i // group.
    """

    columns: int
    group: int
    batch: int
    head: int
    first: int
    step: int
    count: int


class Sizes(NamedTuple):
    """The sizes of the operands of a matrix."""

    n_keys: int
    head_dim: int
    value_dim: int
    steps: int
    """Steps of `STEP` numbers in a key."""
    blocks: int
    """Blocks of `AMX_ROWS` numbers in a value."""
    padded: int
    """Numbers in a row of staging memory: a key or value in whole steps and blocks."""
    query_bytes: int
    """Bytes of the parts of a panel of queries."""
    sums_bytes: int
    """Bytes of a panel of sums over values."""
    chunk_steps: int
    """Steps of `STEP` keys that are split at a time."""


class Memory(NamedTuple):
    """Addresses in the memory of a task."""

    queries: int
    """The queries of each panel, in parts."""
    probabilities: int
    """The probabilities of a block of keys, in parts."""
    scores: int
    """The scores of two blocks of keys, a row of a panel for each key."""
    sums: int
    """The sums over values of each panel."""
    states: int
    """The state of each panel, see `PANEL_STATE_BYTES`; in front is one of no panel."""
    shifts: int
    """The numbers that are subtracted from the scores of a panel."""
    factors: int
    """The factors that rescale the sums of a panel."""
    scales: int
    """A vector of the scale of all scores, which count powers of two."""
    staging: int
    """A panel of rows of padded operands, f32."""
    transposed: int
    """A buffer of the same size for transposes."""
    keys: int
    """In parts, of a chunk."""
    values: int
    """In parts, of a chunk."""
    bounds: int
    """Two int64 for each panel: the numbers of keys that some and that all of its queries see."""


@kernel_part
def sizes_of(n_keys, head_dim, value_dim, chunk):
    """Return the sizes for chunks of as many keys."""
    steps, blocks = (head_dim + STEP - 1) // STEP, (value_dim + AMX_ROWS - 1) // AMX_ROWS
    padded = max(steps * STEP, blocks * AMX_ROWS)
    query_bytes = (steps + STEPS - 1) // STEPS * RIGHT_BYTES
    sums_bytes = 4 * PANEL * AMX_ROWS * blocks
    return Sizes(
        n_keys, head_dim, value_dim, steps, blocks, padded, query_bytes, sums_bytes, chunk // STEP
    )


@kernel_part
def memory_bytes(sizes, panels, *, LEFT_BYTES):
    """Return how much memory `memory_at` needs."""
    return (
        4096
        + panels * sizes.query_bytes
        + RIGHT_BYTES
        + 2 * TILE_BYTES
        + 8 * PANEL * KEYS
        + panels * sizes.sums_bytes
        + 12 * PANEL * (panels + 1)
        + 12 * PANEL
        + 8 * PANEL * sizes.padded
        + sizes.chunk_steps * (sizes.steps + sizes.blocks) * LEFT_BYTES
        + 16 * panels
    )


@kernel_part
def memory_at(address, sizes, panels, *, LEFT_BYTES):
    """Return where all is in the memory at an address, for as many panels.

    It begins on a page, so that what is used together falls on known sets of the L1 cache.
    """
    queries = (address + 4095) // 4096 * 4096
    # Queries that fill half of their block leave the other half of the cache's sets to the
    # probabilities.
    probabilities = (
        queries + panels * sizes.query_bytes + (2 * TILE_BYTES if sizes.steps <= 2 else 0)
    )
    scores = queries + panels * sizes.query_bytes + RIGHT_BYTES + 2 * TILE_BYTES
    sums = scores + 8 * PANEL * KEYS
    states = sums + panels * sizes.sums_bytes + PANEL_STATE_BYTES
    shifts = states + PANEL_STATE_BYTES * panels
    factors, scales = shifts + 4 * PANEL, shifts + 8 * PANEL
    staging = scales + 4 * PANEL
    transposed = staging + 4 * PANEL * sizes.padded
    keys = transposed + 4 * PANEL * sizes.padded
    values = keys + sizes.chunk_steps * sizes.steps * LEFT_BYTES
    bounds = values + sizes.chunk_steps * sizes.blocks * LEFT_BYTES
    return Memory(
        queries, probabilities, scores, sums, states, shifts, factors, scales, staging, transposed,
        keys, values, bounds,
    )  # fmt: skip
