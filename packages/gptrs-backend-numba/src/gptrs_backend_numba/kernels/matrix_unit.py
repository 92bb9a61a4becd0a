"""Sources of the kernels of products on the matrix unit: packing of the left side, and tasks.

The left side is split into parts once, a panel of the right side block by block into memory of the
task, where it stays in the L1 cache while all rows pass by. Numbers that are not finite have no
parts: blocks of sums that they belong to are computed again, one by one. The geometry is that of
`gptrs_backend_numba.kernels.gemm_geometry`; a tile is a block of `UNIT_ROWS` rows.
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.kernels.gemm_geometry import placed
from gptrs_backend_numba.kernels.matrix_unit_ir import (
    ASKS,
    MOST_PARTS,
    PART_BYTES,
    STEP,
    TILE_BYTES,
    UNIT_ROWS,
    begin_sums,
    leave_matrix_unit,
    multiply_block,
    split_panel,
    split_row,
    use_matrix_unit,
)
from gptrs_backend_numba.kernels.registers import load, typed_pointer

_STEPS = 4
"""Steps of a panel in a block: in parts it fills half of the L1 cache."""

_LEFT = placed("""
# in {parts} parts
def kernel(lhs, nothing, out, geometry, task):
    G = pointer(geometry, np.int64)
    m, k = G[M], G[K]
    steps, whole = (k + STEP - 1) // STEP, k // STEP
    target = out + task * steps * LEFT_BYTES
    odd = np.int64(0)
    held = np.zeros(STEP, np.float32)
    height = min(UNIT_ROWS, m - task * UNIT_ROWS)
    rows = lhs + 4 * task * UNIT_ROWS * k
    for first in range(0, whole, STEPS):  # of all rows, so that the results stay in the L1 cache
        for i in range(height):
            place = target + first * LEFT_BYTES + i // 16 * TILE_BYTES + i % 16 * 64
            odd |= split_row(rows + 4 * (i * k + first * STEP), place, min(STEPS, whole - first))
    for i in range(UNIT_ROWS):
        place = target + i // 16 * TILE_BYTES + i % 16 * 64
        X = pointer(rows + 4 * i * k, np.float32)
        for j in range(k - whole * STEP if i < height else 0):
            held[j] = X[whole * STEP + j]
        if whole < steps:
            odd |= split_row(held.ctypes.data, place + whole * LEFT_BYTES, 1)
            held[:] = 0
        for step in range(0 if i < height else whole):
            split_row(held.ctypes.data, place + step * LEFT_BYTES, 1)
    pointer(out + G[TILES] * steps * LEFT_BYTES, np.int64)[task] = odd
    return 0
""")

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
    steps = (k + STEP - 1) // STEP
    odd_tiles = pointer(lhs + tiles * steps * LEFT_BYTES, np.int64)
    odd_panels = np.zeros(last_panel - first_panel, np.int64)
    held = np.empty(STEPS * RIGHT_BYTES + (SIZE * STEP + 4 * UNIT_ROWS * count) * PANEL + 64,
                    np.uint8)
    parts = (held.ctypes.data + 63) // 64 * 64
    rest = parts + STEPS * RIGHT_BYTES
    own_sums = rest + SIZE * STEP * PANEL
    nothing = np.zeros(PANEL, np.float32)
    size, o_step, r_step = 4 * PANEL * UNIT_ROWS, 4 * G[OUT_STEP], 4 * G[RESIDUAL_STEP]
    row, panel_step = SIZE * PANEL, SIZE * PANEL * k
    use_matrix_unit()
    begin = np.int64(0)
    while True:
        length = min(depth, k - begin)
        last = begin + length >= k
        for panel in range(first_panel, last_panel):
            B = rhs + panel * panel_step + begin * row
            # The blocks together ask for the panel that comes next.
            ahead, pace = B + panel_step, STEP * row // (ASKS * count)
            if panel + 1 == last_panel:
                ahead = rhs + (last_panel + G[SKIPPED]) % panels * panel_step
                if not last:
                    ahead = rhs + first_panel * panel_step + (begin + length) * row
            sums = own_sums
            if depth < k:
                sums = G[SUMS] + 4 * PANEL * UNIT_ROWS * (panel * tiles + first_tile)
            direct = G[DIRECT] != 0 and (panel + 1) * PANEL <= n
            for tile in range(count if begin == 0 else 0):
                start, other, step = nothing.ctypes.data, nothing.ctypes.data, np.int64(0)
                first = (first_tile + tile) * UNIT_ROWS
                whole_tile = direct and first + UNIT_ROWS <= m
                if whole_tile and G[HAS_BIAS]:
                    start = G[BIAS] + 4 * panel * PANEL
                if whole_tile and G[HAS_RESIDUAL]:
                    other, step = G[RESIDUAL] + first * r_step + 4 * panel * PANEL, r_step
                begin_sums(sums + size * tile, UNIT_ROWS, start, other, step)
            for at in range(0, length, STEPS * STEP):
                here = min(STEPS * STEP, length - at)
                whole = here // STEP
                odd = split_panel(B + at * row, parts, whole)
                if whole * STEP < here:
                    S, T = pointer(B + (at + whole * STEP) * row, UINT), pointer(rest, UINT)
                    for i in range((here - whole * STEP) * PANEL):
                        T[i] = S[i]
                    for i in range((here - whole * STEP) * PANEL, STEP * PANEL):
                        T[i] = 0
                    odd |= split_panel(rest, parts + whole * RIGHT_BYTES, 1)
                odd_panels[panel - first_panel] |= odd
                some = (here + STEP - 1) // STEP
                L = lhs + (first_tile * steps + (begin + at) // STEP) * LEFT_BYTES
                for tile in range(count):
                    place, place_step = sums + size * tile, np.int64(4 * PANEL)
                    first = (first_tile + tile) * UNIT_ROWS
                    if direct and last and at + here >= length and first + UNIT_ROWS <= m:
                        place, place_step = out + first * o_step + 4 * panel * PANEL, o_step
                    multiply_block(L + tile * steps * LEFT_BYTES, parts, sums + size * tile, some,
                                   place, place_step, ahead, pace)
                    ahead += pace * ASKS * some
            for tile in range(count if last else 0):
                first = (first_tile + tile) * UNIT_ROWS
                height, width = min(UNIT_ROWS, m - first), min(PANEL, n - panel * PANEL)
                place = sums + size * tile
                odd = odd_panels[panel - first_panel] | odd_tiles[first_tile + tile]
                if odd:
                    X = pointer(G[ORIGINAL] + 4 * first * k, np.float32)
                    C = pointer(place, np.float32)
                    Y = {Y}
                    for i in range(height):
                        for j in range(width):
                            total = np.float32(0.0)
                            for p in range(k):
                                total = fma(X[i * k + p], {y}, total)
                            C[i * PANEL + j] = total
                if odd or not (direct and height == UNIT_ROWS):
                    call_compiled(G[FINISH], place, PANEL, out, first, panel * PANEL, height,
                                  width, geometry, 0)
        begin += length
        if last:
            break
    leave_matrix_unit()
    return 0
""")


def parts_of(dtype: DType) -> int:
    """Of how many bf16 a number of this type is the sum."""
    return {dtypes.bf16: 1, dtypes.f16: 2}.get(dtype, MOST_PARTS)


def left_bytes(dtype: DType, rows: int, k: int) -> int:
    """Of a left side that was of this type, in parts."""
    tiles, steps = -(-rows // UNIT_ROWS), -(-k // STEP)
    return tiles * (steps * PART_BYTES * parts_of(dtype) + 8)


def left_source(dtype: DType) -> tuple[str, dict[str, object]]:
    """Splits `UNIT_ROWS` rows of a left side of f32 that was of this type; and its names."""
    parts = parts_of(dtype)
    names = {"LEFT_BYTES": PART_BYTES * parts, "split_row": split_row(parts)}
    return _LEFT.format(parts=parts), {**_NAMES, **names}


def task_source(left: DType, right: DType) -> tuple[str, dict[str, object]]:
    """Tasks of a product with a packed right side; and its names."""
    left_parts, right_parts = parts_of(left), parts_of(right)
    names = {
        "LEFT_BYTES": PART_BYTES * left_parts,
        "RIGHT_BYTES": PART_BYTES * right_parts,
        "split_panel": split_panel(str(right), right_parts),
        "multiply_block": multiply_block(left_parts, right_parts),
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
    "ASKS": ASKS,
    "STEP": STEP,
    "STEPS": _STEPS,
    "TILE_BYTES": TILE_BYTES,
    "UNIT_ROWS": UNIT_ROWS,
    "begin_sums": begin_sums,
    "leave_matrix_unit": leave_matrix_unit,
    "use_matrix_unit": use_matrix_unit,
}
