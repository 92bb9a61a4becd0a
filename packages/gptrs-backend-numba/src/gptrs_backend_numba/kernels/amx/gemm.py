"""Sources of the kernels of products on the matrix unit: packing of the left side, and tasks.

A task splits its part of the left side, and the panels of the right side block by block, into
memory of its own: the left side stays in the L2 cache, the block in the L1 cache, while all rows
pass by. Sums with numbers that are not finite become NaN, and are computed again without parts. The
geometry is that of `matmul.gemm_geometry`; a tile is a block of `AMX_ROWS` rows.
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.registers import load, typed_pointer
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    MOST_PARTS,
    PAIRS,
    PART_BYTES,
    STEP,
    STEPS,
    TILE_BYTES,
    split_pairs,
    split_row,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    AMX_ROWS,
    PAIRS_A_STEP,
    begin_sums,
    configure_amx,
    has_nan,
    multiply_and_split,
    multiply_block,
    release_amx,
)
from gptrs_backend_numba.kernels.matmul.gemm_geometry import placed


@register_jitable
def block_after(panel, begin, first, last, k, depth):
    """The panel and the first k of the block that follows one, of the panels from first to last.

    All panels come with `depth` values of k, then with the next ones; at the end begin is k.
    """
    chunk = begin // depth * depth
    begin += STEPS * STEP
    if begin < min(chunk + depth, k):
        return panel, begin
    if panel + 1 < last:
        return panel + 1, chunk
    return first, min(chunk + depth, k)


_LEFT = """
# in {parts} parts
def kernel(lhs, target, m, k, tiles, length, unused, free, idle):
    steps, whole = (length + STEP - 1) // STEP, length // STEP
    held = np.zeros(STEP, np.float32)
    for first in range(0, steps, STEPS):
        here = min(STEPS, steps - first)
        for row in range(tiles * AMX_ROWS):
            tile, i = row // AMX_ROWS, row % AMX_ROWS
            place = target + (first * tiles + here * tile) * LEFT_BYTES
            place += i // 16 * TILE_BYTES + i % 16 * 64
            source = lhs + 4 * (row * k + first * STEP)
            full = min(here, whole - first) if row < m else 0
            split_row(source, place, full)
            X = pointer(source, np.float32)
            for step in range(full, here):  # what there is of it, and zeros
                left = length - (first + step) * STEP if row < m else 0
                for j in range(left):
                    held[j] = X[step * STEP + j]
                split_row(held.ctypes.data, place + step * LEFT_BYTES, 1)
                held[:] = 0
    return 0
"""

_TASK = placed("""
# {dtype}, in {parts} parts
def kernel(lhs, rhs, out, geometry, task):
    G = pointer(geometry, np.int64)
    m, n, k = G[M], G[N], G[K]
    tiles, depth = G[TILES], G[DEPTH]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    row_block = task // columns
    first_tile = row_block * G[TILES_A_TASK]
    first_panel = (task - row_block * columns) * G[PANELS_A_TASK]
    count = min(G[TILES_A_TASK], tiles - first_tile)
    last_panel = min(first_panel + G[PANELS_A_TASK], panels)
    steps = (min(depth, k) + STEP - 1) // STEP
    held = np.empty(count * steps * LEFT_BYTES + 2 * STEPS * RIGHT_BYTES
                    + (SIZE * STEPS * STEP + 4 * AMX_ROWS * count) * PANEL + 64, np.uint8)
    left = (held.ctypes.data + 63) // 64 * 64
    parts = left + count * steps * LEFT_BYTES
    others = parts + STEPS * RIGHT_BYTES
    rest = others + STEPS * RIGHT_BYTES
    own_sums = rest + SIZE * STEPS * STEP * PANEL
    nothing = np.zeros(PANEL, np.float32)
    size, o_step, r_step = 4 * PANEL * AMX_ROWS, 4 * G[OUT_STEP], 4 * G[RESIDUAL_STEP]
    row, panel_step = SIZE * PANEL, SIZE * PANEL * k
    configure_amx()
    panel, begin = first_panel, np.int64(0)
    after, later = block_after(panel, begin, first_panel, last_panel, k, depth)
    ready = False
    while begin < k:
        # While this block is multiplied, the next one is split, and the one after it asked for.
        chunk = begin // depth * depth
        if begin == chunk and panel == first_panel:
            first = first_tile * AMX_ROWS
            call_compiled(G[PACK], lhs + 4 * (first * k + chunk), left, m - first, k, count,
                          min(depth, k - chunk), 0, 0, 0)
        here = min(STEPS * STEP, k - begin)
        some = (here + STEP - 1) // STEP
        B = rhs + panel * panel_step + begin * row
        if not ready and here == STEPS * STEP:
            split_pairs(B, parts, 0, PAIRS)
        elif not ready:
            S, T = pointer(B, UINT), pointer(rest, UINT)
            for i in range(here * PANEL):
                T[i] = S[i]
            for i in range(here * PANEL, some * STEP * PANEL):
                T[i] = 0
            split_pairs(rest, parts, 0, some * STEP // 2)
        source = rhs + after * panel_step + later * row
        ready = later + STEPS * STEP <= k
        third, ahead = first_panel, k
        if later < k:
            third, ahead = block_after(after, later, first_panel, last_panel, k, depth)
        wanted = rhs + third * panel_step + ahead * row
        if ahead >= k:
            wanted = rhs + (last_panel + G[SKIPPED]) % panels * panel_step
        sums = own_sums
        if depth < k:
            sums = G[SUMS] + 4 * PANEL * AMX_ROWS * (panel * tiles + first_tile)
        direct = G[DIRECT] != 0 and (panel + 1) * PANEL <= n
        last, split = begin + here >= k, np.int64(0)
        L = left + (begin - chunk) // STEP * count * LEFT_BYTES
        for tile in range(count):
            first = (first_tile + tile) * AMX_ROWS
            whole = direct and first + AMX_ROWS <= m
            if begin == 0:
                start, other, step = nothing.ctypes.data, nothing.ctypes.data, np.int64(0)
                if whole and G[HAS_BIAS]:
                    start = G[BIAS] + 4 * panel * PANEL
                if whole and G[HAS_RESIDUAL]:
                    other, step = G[RESIDUAL] + first * r_step + 4 * panel * PANEL, r_step
                begin_sums(sums, AMX_ROWS, start, other, step)
            place, place_step = sums, np.int64(4 * PANEL)
            if last and whole:
                place, place_step = out + first * o_step + 4 * panel * PANEL, o_step
            if ready and split < PAIRS:
                multiply_and_split(L, parts, sums, some, place, place_step, source, others, wanted,
                                   split)
                split += PAIRS_A_STEP * some
            else:
                multiply_block(L, parts, sums, some, place, place_step)
            L += some * LEFT_BYTES
            if last:
                odd = has_nan(place, place_step)
                height, width = min(AMX_ROWS, m - first), min(PANEL, n - panel * PANEL)
                if odd:
                    X = pointer(lhs + 4 * first * k, np.float32)
                    C = pointer(sums, np.float32)
                    Y = {Y}
                    for i in range(height):
                        for j in range(width):
                            total = np.float32(0.0)
                            for p in range(k):
                                total = fma(X[i * k + p], {y}, total)
                            C[i * PANEL + j] = total
                if odd or not whole:
                    call_compiled(G[FINISH], sums, PANEL, out, first, panel * PANEL, height,
                                  width, geometry, 0)
            sums += size
        if ready:
            split_pairs(source, others, split, PAIRS)
        parts, others = others, parts
        panel, begin = after, later
        after, later = third, ahead
    release_amx()
    held[0], nothing[0] = 0, 0  # known to the loops by address only
    return 0
""")


def parts_of(dtype: DType) -> int:
    """Of how many bf16 a number of this type is the sum."""
    return {dtypes.bf16: 1, dtypes.f16: 2}.get(dtype, MOST_PARTS)


def left_bytes(dtype: DType, k: int) -> int:
    """Of `AMX_ROWS` rows of a left side that was of this type, in parts."""
    return -(-k // STEP) * PART_BYTES * parts_of(dtype)


def left_source(dtype: DType) -> tuple[str, dict[str, object]]:
    """Splits rows of a left side of f32 that was of this type; and its names."""
    parts = parts_of(dtype)
    names = {"LEFT_BYTES": PART_BYTES * parts, "split_row": split_row(parts)}
    return _LEFT.format(parts=parts), {**_NAMES, **names}


def task_source(left: DType, right: DType) -> tuple[str, dict[str, object]]:
    """Tasks of a product with a packed right side; and its names."""
    left_parts, right_parts = parts_of(left), parts_of(right)
    names: dict[str, object] = {
        "LEFT_BYTES": PART_BYTES * left_parts,
        "RIGHT_BYTES": PART_BYTES * right_parts,
        "split_pairs": split_pairs(str(right), right_parts),
        "multiply_block": multiply_block(left_parts, right_parts),
        "multiply_and_split": multiply_and_split(left_parts, right_parts, str(right)),
    }
    text = _TASK.format(
        dtype=right,
        parts=f"{left_parts} x {right_parts}",
        Y=typed_pointer("rhs + panel * panel_step", right),
        y=load(right, "Y[p * PANEL + j]"),
    )
    text = text.replace("SIZE", str(right.itemsize))
    return text.replace("UINT", f"np.uint{8 * right.itemsize}"), {**_NAMES, **names}


_NAMES: dict[str, object] = {
    "PAIRS": PAIRS,
    "PAIRS_A_STEP": PAIRS_A_STEP,
    "STEP": STEP,
    "STEPS": STEPS,
    "TILE_BYTES": TILE_BYTES,
    "AMX_ROWS": AMX_ROWS,
    "begin_sums": begin_sums,
    "block_after": block_after,
    "has_nan": has_nan,
    "release_amx": release_amx,
    "configure_amx": configure_amx,
}
