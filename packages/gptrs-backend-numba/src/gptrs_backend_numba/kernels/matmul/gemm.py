"""Sources of the kernels of the matrix product: packing, and the walk over tiles.

The left side is packed in tiles: `rows` numbers, f32, for each k. The right side (n, k) is read in
panels: `PANEL` numbers for each k, padded with zeros; from a packed copy, packed block by block
into memory of the task, or in place. All kernels share one geometry, see `gemm_geometry`. The
order of each sum depends on m and k alone, so it never shows in a result how many threads there
are, nor where the borders of tasks lie.
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import load, typed_pointer
from gptrs_backend_numba.kernels.matmul.gemm_geometry import placed
from gptrs_backend_numba.kernels.matmul.gemm_ir import ROWS

RUN_SOURCE = placed("""
def kernel(state, function, count, threads, lhs, rhs, bias, residual, sums, out, geometry):
    G = pointer(geometry, np.int64)
    G[BIAS], G[RESIDUAL], G[SUMS] = bias, residual, sums
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, lhs, rhs, out, geometry, task)
        return 0
    publish(state, function, count, threads, lhs, rhs, out, geometry)
    while take_task(state, 0):
        pass
    await_others(state, count)
    return 0
""")
"""Runs the tasks of a product; operands that there are not may be any address."""

TASK_SOURCE = placed("""
def kernel(lhs, rhs, out, geometry, task):
    G = pointer(geometry, np.int64)
    m, n, k = G[M], G[N], G[K]
    tiles, depth, way = G[TILES], G[DEPTH], G[WAY]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    rows = (tiles + G[TILES_A_TASK] - 1) // G[TILES_A_TASK]
    batch = task // (rows * columns)
    row_block = (task - batch * rows * columns) // columns
    first_tile = row_block * G[TILES_A_TASK]
    first_panel = (task - (batch * rows + row_block) * columns) * G[PANELS_A_TASK]
    last_tile = min(first_tile + G[TILES_A_TASK], tiles)
    last_panel = min(first_panel + G[PANELS_A_TASK], panels)
    whole, taller = m // tiles, m % tiles
    L = lhs + 4 * batch * m * k
    R = rhs + SIZE * offset(G, G[RIGHT], G[RANK], batch)
    step, panel_step = SIZE * G[RK], SIZE * PANEL * G[RN]
    if way == PACKED:
        R, step, panel_step = rhs, SIZE * PANEL, SIZE * PANEL * k
    paired = m == 1 and (way == PACKED or way == PANELS)
    packed = 0 if way == PACKED else 2 if paired else 1
    block = np.empty(SIZE * PANEL * depth * packed, np.uint8)
    memory = tile_memory()
    padded = panels * PANEL
    begin, nothing = np.int64(0), np.int64(0)
    while True:
        length = min(depth, k - begin)
        last = begin + length >= k
        panel = first_panel
        while paired and panel + 1 < last_panel:
            B, b_step = R + panel * panel_step, step
            column = panel * PANEL
            if way == PANELS:
                for half in range(2):
                    call_compiled(G[PACK], B + half * panel_step,
                                  block.ctypes.data + half * SIZE * PANEL * k,
                                  min(PANEL, n - column - half * PANEL), k, G[RN], G[RK], 0, 0, 0)
                B, b_step = block.ctypes.data, np.int64(SIZE * PANEL)
            if G[DIRECT] and column + 2 * PANEL <= n:
                bias = G[BIAS] + 4 * column if G[HAS_BIAS] else nothing
                residual = nothing
                if G[HAS_RESIDUAL]:
                    residual = G[RESIDUAL] + 4 * (batch * G[RESIDUAL_STEP] + column)
                call_tile(G[TILE], L, B, b_step, k, 0, bias, 0, residual, 0,
                          out + 4 * (batch * G[OUT_STEP] + column), 0, B + 64 * PANEL, b_step)
            else:
                call_tile(G[TILE], L, B, b_step, k, 0, 0, 0, 0, 0, memory, PANEL,
                          B + 64 * PANEL, b_step)
                for half in range(2):
                    width = min(PANEL, n - column - half * PANEL)
                    call_compiled(G[FINISH], memory + 4 * PANEL * half, PANEL, out, batch,
                                  column + half * PANEL, 1, width, geometry, 0)
            panel += 2
        for panel in range(panel, last_panel):
            column = panel * PANEL
            width = min(PANEL, n - column)
            direct = G[DIRECT] != 0 and width == PANEL
            B, b_step = R + panel * panel_step + begin * step, step
            if way == BLOCKS or way == PANELS or (way == IN_PLACE and width < PANEL):
                call_compiled(G[PACK], B, block.ctypes.data, width, length, G[RN], G[RK], 0, 0, 0)
                B, b_step = block.ctypes.data, np.int64(SIZE * PANEL)
            ahead, pace = B + 16 * b_step, b_step
            shares = way == PACKED and last_tile > first_tile + 1
            if shares:  # each tile asks for a part of the panel that comes next
                ahead = B + panel_step
                if panel + 1 == last_panel:
                    ahead = R + (last_panel + G[SKIPPED]) % panels * panel_step
                    if not last:
                        ahead = R + first_panel * panel_step + (begin + length) * step
                pace = (b_step - 1) // (last_tile - first_tile) + 1
            for tile in range(first_tile, last_tile):
                row = tile * whole + min(tile, taller)
                height = whole + (1 if tile < taller else 0)
                first = batch * m + row
                start, start_row, other, other_row = nothing, nothing, nothing, nothing
                C, c_step = memory, np.int64(PANEL)
                if direct:
                    c_step = G[OUT_STEP]
                    C = out + 4 * (first * c_step + column)
                    if G[HAS_BIAS]:
                        start = G[BIAS] + 4 * column
                    if G[HAS_RESIDUAL] and begin == 0:
                        other_row = G[RESIDUAL_STEP]
                        other = G[RESIDUAL] + 4 * (first * other_row + column)
                elif depth < k:
                    C, c_step = G[SUMS] + 4 * (first * padded + column), padded
                if begin > 0:
                    start, start_row = C, c_step
                if tile + 1 < last_tile:
                    if begin > 0:
                        prefetch_rows(C + 4 * height * c_step, 4 * c_step, height)
                    elif direct and G[HAS_RESIDUAL]:
                        prefetch_rows(other + 4 * height * other_row, 4 * other_row, height)
                call_tile(G[TILE], L + 4 * (row * k + begin * height), B, b_step, length, height,
                          start, start_row, other, other_row, C, c_step, ahead, pace)
                if shares:
                    ahead += pace * length
                if last and not direct:
                    call_compiled(G[FINISH], C, c_step, out, first, column, height, width,
                                  geometry, 0)
        begin += length
        if last:
            break
    block[:1] = 0  # known to the tiles by address only
    return 0
""")

DOTS_SOURCE = placed("""
def kernel(lhs, rhs, out, geometry, task):
    G = pointer(geometry, np.int64)
    m, n, k, step = G[M], G[N], G[K], SIZE * G[RN]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    batch = task // columns
    first_panel = (task - batch * columns) * G[PANELS_A_TASK]
    L = lhs + 4 * batch * m * k
    matrix = rhs + SIZE * offset(G, G[RIGHT], G[RANK], batch)
    memory = tile_memory()
    whole = k - k % (2 * FLOATS)
    X, C = pointer(L, np.float32), pointer(memory, np.float32)
    for block in range(first_panel, min(first_panel + G[PANELS_A_TASK], panels)):
        width = min(PANEL, n - block * PANEL)
        for row in range(m):
            for j in range(0, width, DOT_ROWS):
                # The last rows of all are read again rather than any beyond the end.
                column = min(block * PANEL + j, n - DOT_ROWS)
                R = matrix + column * step
                at = DOT_ROWS + column - block * PANEL
                dots_DTYPE(L + 4 * row * k, R, step, memory + 4 * at, whole)
                for i in range(DOT_ROWS):
                    Y = POINTER
                    total = C[at + i]
                    for p in range(whole, k):
                        total = fma(X[row * k + p], LOAD, total)
                    C[at + i] = total
            sums = memory + 4 * DOT_ROWS
            first = batch * m + row
            call_compiled(G[FINISH], sums, PANEL, out, first, block * PANEL, 1, width, geometry, 0)
    return 0
""")

_TILE = """
def kernel(lhs, rhs, step, count, rows, start, start_row, other, other_row, out, row, ahead, pace):
    if rows == 0:
        {pair}
{cases}
    return 0
"""

_LEFT = placed("""
# {operand}
def kernel(lhs, nothing, out, geometry, task):
    G = pointer(geometry, np.int64)
    m, k, lm, lk, tiles = G[M], G[K], G[LM], G[LK], G[TILES]
    X = {X}
    batch = task // tiles
    tile = task - batch * tiles
    whole, taller = m // tiles, m % tiles
    row = tile * whole + min(tile, taller)
    height = whole + (1 if tile < taller else 0)
    begin = offset(G, G[LEFT], G[RANK], batch) + row * lm
    P = pointer(out + 4 * (batch * m + row) * k, np.float32)
    done, squares = np.int64(0), np.int64(0)
    if {transposes} and lk == 1:
        squares, done = height - height % 4, k - k % 4
        for line in range(0, done, 16):
            # Whole cache lines of a few rows: those of many rows may displace one another.
            for i in range(0, squares, 4):
                for j in range(line, min(line + 16, done), 4):
                    source = lhs + 4 * (begin + i * lm + j)
                    target = out + 4 * ((batch * m + row) * k + j * height + i)
                    transpose_4(source, 4 * lm, target, 4 * height)
    for i in range(height):
        for j in range(done if i < squares else 0, k):
            P[j * height + i] = {x}
    return 0
""")

_RIGHT = """
def kernel(source, target, width, length, rn, rk, unused, free, idle):
    S, T = pointer(source, TYPE), pointer(target, TYPE)
    if width < PANEL:
        for i in range(length * PANEL):
            T[i] = 0
    if rn == 1 and width == PANEL:
        for k in range(length):
            for j in range(PANEL):
                T[k * PANEL + j] = S[k * rk + j]
        return 0
    done, squares = np.int64(0), np.int64(0)
    if rk == 1:
        squares, done = width - width % SIDE, length - length % SIDE
        for k in range(0, done, SIDE):
            for j in range(0, squares, SIDE):
                transpose_SIZE(source + SIZE * (j * rn + k), SIZE * rn,
                               target + SIZE * (k * PANEL + j), SIZE * PANEL)
    for j in range(width):
        for k in range(done if j < squares else 0, length):
            T[k * PANEL + j] = S[j * rn + k * rk]
    return 0
"""

WEIGHT_SOURCE = placed("""
def kernel(source, nothing, target, geometry, task):
    G = pointer(geometry, np.int64)
    k, rn = G[K], G[RN]
    width = min(PANEL, G[N] - task * PANEL)
    call_compiled(G[PACK], source + SIZE * task * PANEL * rn, target + SIZE * task * PANEL * k,
                  width, k, rn, G[RK], 0, 0, 0)
    return 0
""")
"""Packs one panel of a whole right side."""


def task_source(dtype: DType) -> str:
    """Tasks of a product with a right side of this type: blocks of rows and columns."""
    return TASK_SOURCE.replace("SIZE", str(dtype.itemsize))


def dots_source(dtype: DType) -> str:
    """Tasks of a product with few rows, f32, one after another, and a right side with RK = 1.

    It must have at least `DOT_ROWS` rows, and is read in place.
    """
    source = DOTS_SOURCE.replace("POINTER", typed_pointer("R + i * step", dtype))
    source = source.replace("LOAD", load(dtype, "Y[p]")).replace("DTYPE", str(dtype))
    return source.replace("SIZE", str(dtype.itemsize))


def tile_source(dtype: DType) -> str:
    """The tiles of all heights on a right side of this type; `rows` 0 is one row, two panels."""
    arguments = "lhs, rhs, step, count, start, start_row, other, other_row, out, row, ahead, pace"
    cases = [
        f"    if rows == {rows}:\n        tile_{rows}_{dtype}({arguments})"
        for rows in range(1, ROWS + 1)
    ]
    return _TILE.format(pair=f"pair_{dtype}({arguments})", cases="\n".join(cases))


def left_source(operand: DType) -> str:
    """Packs one tile of a left side of this type."""
    return _LEFT.format(
        operand=operand,
        transposes=operand is dtypes.f32,
        X=typed_pointer("lhs", operand),
        x=load(operand, "X[begin + i * lm + j * lk]"),
    )


def right_source(size: int) -> str:
    """Packs one panel of a right side, or a block of one, of elements of 2 or 4 bytes."""
    source = _RIGHT.replace("SIZE", str(size)).replace("SIDE", str(16 // size))
    return source.replace("TYPE", f"np.uint{8 * size}")


def weight_source(size: int) -> str:
    """Packs one panel of a right side that is kept, of elements of 2 or 4 bytes."""
    return WEIGHT_SOURCE.replace("SIZE", str(size))
