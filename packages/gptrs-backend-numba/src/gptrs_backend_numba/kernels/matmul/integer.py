"""Kernels of products and convolutions of 8-bit integers: packing, and the walk over tiles.

Of a left side `a - p` and a right side `b - q`, p and q being zero points, the sum over k is

    sum(a * b) - p * sum(b) - q * (sum(a) - k * p)

where `sum(a * b)` is of unsigned and signed bytes: signed ones on the left, and unsigned ones on
the right, are moved by 128, and so are their zero points. A panel of the right side ends with the
sums of its columns, so that the terms of a column are what its sums begin with. Rows are summed
only where there are zero points on the right.

A task gathers its rows of the left side in memory of its own, for all of its panels: bytes are
moved by 128, padded images become patches. Where there is nothing to do, it reads them where they
lie: windows, too, if their rows are long, and whole steps of a panel. A tile of them does not go
beyond a row of positions, so that its windows have one distance.

Kernels of wide codes (`SIZE` 2, see `wide_codes_ir`) gather, or read in padded images, codes of 16
bits; all sizes in the geometry count codes. They read bytes, too, for split panels: see
`byte_pairs_ir`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gptrs_backend_numba.codegen.byte_vectors import MOVED
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    call_compiled,
    kernel,
    kernel_part,
)
from gptrs_backend_numba.codegen.machine import (
    keep_alive,
    offset,
    pointer,
)
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.matmul.byte_pairs_ir import (
    HAS_BYTE_PAIRS,
    byte_pair_tile,
    count_split,
    panel_bytes,
    split_panel,
)
from gptrs_backend_numba.kernels.matmul.gemm import (
    BIAS,
    FINISH,
    LEFT,
    LENGTH,
    LK,
    LM,
    PANELS_A_TASK,
    RANK,
    REPEATS,
    RIGHT,
    RK,
    RN,
    TILES,
    K,
    M,
    N,
    block_of_task,
    span_of_tile,
    turn,
    turned_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, tile_memory
from gptrs_backend_numba.kernels.matmul.integer_ir import (
    FOUR,
    INTEGER_ROWS,
    STEP_BYTES,
    copy_moved,
    copy_runs,
    integer_tile,
    interleave_three,
    scale_words,
)
from gptrs_backend_numba.kernels.matmul.wide_codes_ir import (
    HAS_WIDE_CODES,
    WIDE,
    WIDE_ROWS,
    panel_widening,
    wide_tile,
    widen_rows,
)

(
    ZERO, OTHER_ZERO, TERM, SCALE, STEP, MIDDLE,  # addresses, filled in by the call
    HAS_ZERO, HAS_OTHER_ZERO, HAS_TERM, HAS_MIDDLE,
    LEAST, MOST,  # codes
    OTHER_ZERO_STEP,  # 1 for a zero point of each column, 0 for one of all
    FLIP, OTHER_FLIP,  # 128 where bytes are moved by it
    IN_PLACE,  # whether rows are read where they lie
    ROW_BYTES, DEPTH,  # k of gathered rows, and of panels, which end with zeros
    HEIGHT, WIDTH_BEFORE, CHANNELS,
    PIXEL,  # channels of all groups
    IMAGE_STEP, ROW_STEP, COLUMN_STEP, CHANNEL_STEP,  # of images, and of padded ones:
    IMAGE_HEIGHT, IMAGE_WIDTH, TOP, SIDE,
    OUT_HEIGHT, OUT_WIDTH,
    TAPS_DOWN, TAPS_ACROSS, STRIDE_DOWN, STRIDE_ACROSS, APART_DOWN, APART_ACROSS,
    ROWS_A_TASK,  # rows of positions of a depthwise convolution
    TILES_OF_ROW,  # tiles of a row of positions, where windows are read in place, else 0
    BYTE_IMAGES,  # how far behind padded images of wide codes those of bytes are, else 0
) = range(LENGTH, LENGTH + 41)  # fmt: skip
"""The numbers that follow the geometry of other products."""
INTEGER_LENGTH = LENGTH + 41
CHUNK = 64
"""Most bytes that are copied at a time, and how much longer copies are than what they hold."""
RUNS = (0, 16, 32, CHUNK)
"""Bytes of runs for which there are kernels."""
_WIDE_TOGETHER = 48
"""Rows of sums of wide codes that are finished together: to begin takes as long as some rows."""
_COLORS = 3
"""Channels of images that come with channels first."""


def integer_numbers(fields: Mapping[int, int]) -> list[int]:
    """Return the numbers in front of the batch axes; those not in `fields` are 0."""
    return [fields.get(position, 0) for position in range(INTEGER_LENGTH)]


@kernel
def run_integer(
    state, function, count, threads, lhs, rhs, zero, other_zero, term, scale, bias, step, middle,
    out, geometry,
):  # fmt: skip
    """Run the tasks of a product; absent operands may be any address."""
    G = pointer(geometry, np.int64)
    G[ZERO], G[OTHER_ZERO], G[TERM], G[SCALE], G[BIAS] = zero, other_zero, term, scale, bias
    G[STEP], G[MIDDLE] = step, middle
    turn(G, count, threads)
    share_tasks(state, function, count, threads, lhs, rhs, out, geometry)
    return 0


@kernel_part
def begin_sums(G, sums, begins, column, width):
    """Write what the sums of the columns of a panel begin with; `sums` are those of its codes."""
    k = np.int32(G[K])
    B = pointer(begins, np.int32)
    zero = np.int32(G[FLIP])
    if G[HAS_ZERO]:
        zero = np.int32(zero + pointer(G[ZERO], np.int32)[0])
    scale_words(sums, begins, np.int32(MOVED - zero))
    if G[HAS_OTHER_ZERO]:
        Q = pointer(G[OTHER_ZERO], np.int32)
        for j in range(width):
            other = np.int32(Q[(column + j) * G[OTHER_ZERO_STEP]] - np.int32(G[OTHER_FLIP]))
            B[j] = np.int32(B[j] + np.int32(np.int32(other * zero) * k))
    if G[HAS_TERM]:
        T = pointer(G[TERM], np.int32)
        for j in range(width):
            B[j] = np.int32(B[j] + T[column + j])


@kernel_part
def add_row_terms(G, sums, totals, column, width, height):
    """Add to the sums of a tile what zero points on the right make of the sums of its rows."""
    Q = pointer(G[OTHER_ZERO], np.int32)
    R, flip = pointer(totals, np.int32), np.int32(G[OTHER_FLIP])
    for i in range(height):
        S, total = pointer(sums + 4 * PANEL * i, np.int32), R[i]
        if G[OTHER_ZERO_STEP] == 0:
            term = np.int32(np.int32(Q[0] - flip) * total)
            for j in range(PANEL):
                S[j] = np.int32(S[j] - term)
        else:
            for j in range(width):
                term = np.int32(np.int32(Q[column + j] - flip) * total)
                S[j] = np.int32(S[j] - term)


@kernel_part
def copy_exactly(source, target, count, flip, *, copy):
    """Copy bytes, moved by `flip`, without reading beyond the last one."""
    whole = count // CHUNK * CHUNK
    copy(source, target, whole, flip)
    S, T = pointer(source, np.uint8), pointer(target, np.uint8)
    for j in range(whole, count):
        T[j] = S[j] ^ np.uint8(flip)


@kernel_part
def widen_bytes(source, target, count, *, SIZE):
    """Widen bytes, which may be the second half of the target, if codes are wide."""
    if SIZE == WIDE:
        S, T = pointer(source, np.uint8), pointer(target, np.uint16)
        for j in range(widen_rows(source, target, count), count):
            T[j] = np.uint16(S[j])


@kernel_part
def gather_rows(G, source, own, first, count, *, SIZE, copy_exactly, widen):
    """Copy rows of a matrix, `ROW_BYTES` codes each."""
    k, lm, lk, whole = G[K], G[LM], G[LK], G[ROW_BYTES]
    # Rows without gaps are one run: of 16 bytes each they take a third of the time so.
    runs, run, step = count, k, lm
    if lk == 1 and lm == k and k == whole:
        runs, run, step = np.int64(1), count * whole, np.int64(0)
    line = max(run, whole)
    for i in range(runs):
        begin, row = source + first * lm + i * step, own + SIZE * i * line
        target = row + (SIZE - 1) * line
        T = pointer(target, np.uint8)
        if lk == 1:
            copy_exactly(begin, target, run, G[FLIP])
        else:
            S = pointer(begin, np.uint8)
            for j in range(k):
                T[j] = S[j * lk] ^ np.uint8(G[FLIP])
        for j in range(run, whole):
            T[j] = np.uint8(0)
        widen(target, row, line)


@kernel_part
def gather_patches(G, source, own, first, count, *, SIZE, copy, copy_runs):
    """Write the windows of some positions of padded images, `ROW_BYTES` codes each.

    Runs are copied in whole chunks: what one writes too much the next writes again.
    """
    whole = SIZE * G[ROW_BYTES]
    channels, pixel = SIZE * G[CHANNELS], SIZE * G[PIXEL]
    line = G[IMAGE_WIDTH] * pixel
    run, runs, apart = G[TAPS_ACROSS] * channels, np.int64(1), G[APART_ACROSS] * pixel
    if G[APART_ACROSS] != 1 or channels != pixel:
        run, runs = channels, G[TAPS_ACROSS]
    # Of runs of few bytes, divisions for each position would take a third of the time.
    row = first // G[OUT_WIDTH]
    across = first - row * G[OUT_WIDTH]
    image = row // G[OUT_HEIGHT]
    down = row - image * G[OUT_HEIGHT]
    for i in range(count):
        place = image * G[IMAGE_HEIGHT] + down * G[STRIDE_DOWN]
        begin = source + place * line + across * G[STRIDE_ACROSS] * pixel
        across += 1
        if across == G[OUT_WIDTH]:
            across, down = np.int64(0), down + 1
            if down == G[OUT_HEIGHT]:
                down, image = np.int64(0), image + 1
        target = own + i * whole
        if runs == 1:
            copy_runs(begin, G[APART_DOWN] * line, G[TAPS_DOWN], target, run)
            continue
        for _ in range(G[TAPS_DOWN]):
            for each in range(runs):
                copy(begin + each * apart, target, run, 0)
                target += run
            begin += G[APART_DOWN] * line


@kernel_part
def pad_row(G, source, zero, target, task, *, copy_exactly, interleave):
    """Write a row of padded images, moved by `FLIP`; what lies in the padding is the zero point."""
    height, width, channels, flip = G[HEIGHT], G[WIDTH_BEFORE], G[CHANNELS], G[FLIP]
    outside = np.uint8(flip)
    if G[HAS_ZERO]:
        outside = np.uint8(outside ^ np.uint8(pointer(zero, np.int32)[0] & 255))
    line = G[IMAGE_WIDTH] * channels
    image = task // G[IMAGE_HEIGHT]
    row = task - image * G[IMAGE_HEIGHT] - G[TOP]
    T = pointer(target, np.uint8)
    first, last = G[SIDE] * channels, (G[SIDE] + width) * channels
    if row < 0 or row >= height:
        first, last = line, line
    for j in range(first):
        T[j] = outside
    if first < line:
        begin = source + image * G[IMAGE_STEP] + row * G[ROW_STEP]
        step, apart = G[CHANNEL_STEP], G[COLUMN_STEP]
        if apart == channels and (step == 1 or channels == 1):
            copy_exactly(begin, target + first, last - first, flip)
        elif apart == 1 and channels == _COLORS:
            done = interleave(begin, step, target + first, width, flip)
            for channel in range(channels):
                S = pointer(begin + channel * step, np.uint8)
                for j in range(done, width):
                    T[first + j * channels + channel] = S[j] ^ np.uint8(flip)
        else:
            # Channels first: what another pass would turn around.
            for channel in range(channels):
                S = pointer(begin + channel * step, np.uint8)
                for j in range(width):
                    T[first + j * channels + channel] = S[j * apart] ^ np.uint8(flip)
    for j in range(last, line):
        T[j] = outside


@kernel
def pad_bytes_task(source, zero, out, geometry, task, *, SIZE, pad_row, widen):
    """Write a row of padded images, which stays there as bytes, too, if `BYTE_IMAGES` is not 0."""
    G = pointer(geometry, np.int64)
    line = G[IMAGE_WIDTH] * G[CHANNELS]
    target = out + SIZE * task * line
    bytes_ = target + (SIZE - 1) * line
    if G[BYTE_IMAGES]:
        bytes_ = out + G[BYTE_IMAGES] + task * line
    pad_row(G, source, zero, bytes_, task)
    widen(bytes_, target, line)
    return 0


@kernel_part
def sum_rows(rows, step, count, k, totals, *, MEMORY):
    """Write the sums of rows of codes."""
    T = pointer(totals, np.int32)
    for i in range(count):
        X = pointer(rows + i * step, MEMORY)
        total = np.int32(0)
        for j in range(k):
            total = np.int32(total + np.int32(X[j]))
        T[i] = total


@kernel_part
def span_of(G, tile):
    """Return the first row of a tile and its height."""
    rows, tiles, before, taller = G[M], G[TILES], np.int64(0), np.int64(0)
    if G[TILES_OF_ROW]:
        rows, tiles = G[OUT_WIDTH], G[TILES_OF_ROW]
        before = tile // tiles
    whole = rows
    if tiles > 1:  # divisions take a tenth of the time of a panel and one row
        whole = rows // tiles
        taller = rows - whole * tiles
    first, height = span_of_tile(whole, taller, tile - before * tiles)
    return before * rows + first, height


@kernel_part
def window_at(G, position):
    """Return the code with which the window of a position begins in padded images."""
    row = position // G[OUT_WIDTH]
    across = position - row * G[OUT_WIDTH]
    image = row // G[OUT_HEIGHT]
    down = row - image * G[OUT_HEIGHT]
    line = image * G[IMAGE_HEIGHT] + down * G[STRIDE_DOWN]
    return (line * G[IMAGE_WIDTH] + across * G[STRIDE_ACROSS]) * G[PIXEL]


@kernel_part
def read_rows(G, source, own, span, fours, *, SIZE, gather):
    """Gather the rows of a task, or find them; return how tiles read them, and `fours` of a run."""
    first, count = span
    rows, step, line, runs = own, SIZE * G[ROW_BYTES], np.int64(0), np.int64(1)
    if G[TILES_OF_ROW]:
        runs, step = G[TAPS_DOWN], SIZE * G[STRIDE_ACROSS] * G[PIXEL]
        fours, line = fours // runs, SIZE * G[APART_DOWN] * G[IMAGE_WIDTH] * G[PIXEL]
    elif G[IN_PLACE]:
        step = G[LM]
        rows = source + first * step
    elif count > 0:
        gather(G, source, own, first, count)
    return (rows, step, line, runs, source), step, fours


@kernel_part
def multiply_tiles(
    G, part, left, right, totals, out, geometry, column, width,
    *, SIZE, ROWS_OF_TILE, TOGETHER, tile,
):  # fmt: skip
    """Compute the tiles of a task in one panel; up to `TOGETHER` rows of sums are finished at once.

    They follow one another in the memory for sums, and in the result.
    """
    batch, first_tile, last_tile, _, _ = part
    rows, step, line, runs, source = left
    codes, fours, begin, memory = right
    first, _ = span_of(G, first_tile)
    done = first
    for each in range(first_tile, last_tile):
        row, height = span_of(G, each)
        begins = rows + (row - first) * step
        if G[TILES_OF_ROW]:
            begins = window_at(G, row)
            begins = source + SIZE * begins
        sums = memory + 4 * PANEL * (row - done)
        tile(height, begins, step, line, runs, codes, fours, begin, sums)
        if G[HAS_OTHER_ZERO]:
            add_row_terms(G, sums, totals + 4 * (row - first), column, width, height)
        end = row + height
        if each + 1 == last_tile or end - done > TOGETHER - ROWS_OF_TILE:
            call_compiled(G[FINISH], memory, PANEL, out, batch * G[M] + done, column, end - done,
                          width, geometry, 0)  # fmt: skip
            done = end


@kernel_part
def rows_of_sides(G, panel, columns, count, more, *, SIZE):
    """Return how many of `count` rows a task reads for its tiles, and how many also as bytes, for
    split panels; then the memory for the former, with room for `more`, and for both."""
    widened, narrow = count, np.int64(0)
    if HAS_BYTE_PAIRS and SIZE == WIDE:
        split = count_split(panel, G[DEPTH], columns)
        narrow = count if split else np.int64(0)
        widened = count if split < columns else np.int64(0)
    gathered, room = np.int64(0), np.int64(0)
    if not G[IN_PLACE]:
        gathered = (widened + more) * SIZE * G[ROW_BYTES] + 2 * CHUNK
        room = gathered + narrow * G[ROW_BYTES]
    return (widened, narrow), (gathered, room)


@kernel_part
def read_sides(G, source, own, first, counts, gathered, fours, *, READS, read_rows, read_bytes):
    """Read the rows of a task as its tiles do, which takes `gathered` bytes, then as bytes.

    Returns both kinds of rows, each with the step from one to the next, and `fours` of a run.
    """
    widened, narrow = counts
    left, step, of_run = read_rows(G, source, own, (first, widened), fours)
    bytes_, byte_step = left, step
    if READS:
        bytes_, byte_step, of_run = read_bytes(G, source + G[BYTE_IMAGES], own + gathered,
                                               (first, narrow), fours)  # fmt: skip
    return (left, step), (bytes_, byte_step), of_run


@kernel_part
def multiply_panel(
    G, part, left, bytes_, codes, wide_panel, right, totals, out, geometry, column, width,
    *, widen, multiply_tiles, multiply_split,
):  # fmt: skip
    """Compute the tiles of a task in one panel, by its bytes if it is split."""
    fours, begin, memory = right
    is_split = False
    if HAS_BYTE_PAIRS:
        is_split = pointer(codes + PANEL * G[DEPTH] + STEP_BYTES, np.int32)[0] >= 0
    if is_split:
        if HAS_BYTE_PAIRS:
            multiply_split(G, part, bytes_, (codes, fours, begin, memory), totals, out, geometry,
                           column, width)  # fmt: skip
    else:
        read = widen(codes, wide_panel, G[DEPTH] // FOUR)
        multiply_tiles(G, part, left, (read, fours, begin, memory), totals, out, geometry, column,
                       width)  # fmt: skip


@kernel
def integer_task(
    lhs, rhs, out, geometry, task,
    *, ON_AMX, SIZE, ROWS_OF_TILE, TOGETHER, rows_of_sides, read_sides, sum_rows, sum_bytes,
    multiply_panel, configure, release,
):  # fmt: skip
    """Compute a block of rows and columns: all its tiles pass by one panel, then the next.

    On AMX a tile reads and writes `ROWS_OF_TILE` rows, and whole steps of a panel. Rows have codes
    of `SIZE` bytes once they are gathered; for split panels they stay bytes.
    """
    G = pointer(geometry, np.int64)
    n, k, depth = G[N], G[K], G[DEPTH]
    panels, size = (n + PANEL - 1) // PANEL, panel_bytes(depth)
    task = turned_task(G, task, (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK])
    part = block_of_task(G, task, panels)
    batch, first_tile, last_tile, first_panel, last_panel = part
    first, _ = span_of(G, first_tile)
    end, _ = span_of(G, last_tile)
    count = end - first
    fours = depth // FOUR if ON_AMX else (k + FOUR - 1) // FOUR
    more = ROWS_OF_TILE if ON_AMX else 0
    held = TOGETHER if TOGETHER > ROWS_OF_TILE else more
    source = lhs + offset(G, G[LEFT], G[RANK], batch)
    right = rhs + batch * panels * size
    columns = last_panel - first_panel
    counts, room = rows_of_sides(G, right + first_panel * size, columns, count, more)
    wide = (SIZE - 1) * WIDE * PANEL * depth
    own = np.empty(wide + room[1] + 3 * CHUNK, np.uint8)
    # Copies to addresses within a cache line write one line, not two.
    wide_panel = (np.int64(own.ctypes.data) + CHUNK - 1) // CHUNK * CHUNK
    left, bytes_, fours = read_sides(G, source, wide_panel + wide, first, counts, room[0], fours)
    words = np.empty(PANEL + held * PANEL + count, np.int32)
    begin = np.int64(words.ctypes.data)
    memory = begin + 4 * PANEL if held else tile_memory()
    totals = begin + 4 * PANEL * (1 + held)
    if G[HAS_OTHER_ZERO]:
        if counts[0] == count:
            sum_rows(left[0][0], left[1], count, k, totals)
        else:
            sum_bytes(bytes_[0][0], bytes_[1], count, k, totals)
    configure()
    for number in range(columns):
        panel = last_panel - 1 - number if G[REPEATS] == 2 else first_panel + number
        codes = right + panel * size
        column = panel * PANEL
        width = min(PANEL, n - column)
        begin_sums(G, codes + PANEL * depth, begin, column, width)
        multiply_panel(G, part, left[0], bytes_[0], codes, wide_panel, (fours, begin, memory),
                       totals, out, geometry, column, width)  # fmt: skip
    release()
    keep_alive(own)
    keep_alive(words)
    return 0


@kernel
def pack_bytes_task(source, unused, target, geometry, task):
    """Pack one panel of a right side, with zeros behind its columns and values of k; sum columns.

    The geometry is that of products; `OTHER_FLIP` is 128 where bytes are unsigned.
    """
    G = pointer(geometry, np.int64)
    n, k, rn, rk, flip = G[N], G[K], G[RN], G[RK], np.uint8(G[OTHER_FLIP])
    panels = (n + PANEL - 1) // PANEL
    batch = task // panels
    column = (task - batch * panels) * PANEL
    width = min(PANEL, n - column)
    depth = G[DEPTH]
    begin = source + offset(G, G[RIGHT], G[RANK], batch) + column * rn
    panel = target + task * panel_bytes(depth)
    T, C = pointer(panel, np.uint8), pointer(panel + PANEL * depth, np.int32)
    for j in range(PANEL):
        C[j] = np.int32(0)
    for four in range(depth // FOUR):
        for j in range(PANEL):
            total = np.int32(0)
            for i in range(FOUR):
                code = np.uint8(0)
                if j < width and four * FOUR + i < k:
                    code = pointer(begin + j * rn + (four * FOUR + i) * rk, np.uint8)[0] ^ flip
                T[four * STEP_BYTES + j * FOUR + i] = code
                total += np.int32(np.int8(code))
            C[j] += total
    if HAS_BYTE_PAIRS:
        split_panel(panel, depth)
    return 0


_COPY = copy_exactly.specialize(copy=copy_moved(CHUNK))
PADDED_ROW = pad_row.specialize(copy_exactly=_COPY, interleave=interleave_three())


@register_jitable
def nothing():
    """Do nothing: vector registers need no configuration."""


def integer_product(run: int) -> SpecializedKernel:
    """Return the tasks of a product, or of a convolution: blocks of rows and columns.

    `run` is the least number of bytes of windows that lie side by side in images, 0 for products.
    """
    return integer_tasks(run, False, INTEGER_ROWS, integer_tile(), (nothing, nothing))


def wide_integer_product(run: int) -> SpecializedKernel:
    """Return `integer_product` on wide codes, for many rows. Needs `HAS_WIDE_CODES`."""
    return integer_tasks(run, False, WIDE_ROWS, wide_tile(), (nothing, nothing), WIDE)


def integer_tasks(
    run: int, on_amx: bool, rows: int, tile: object, around: tuple[object, object], size: int = 1
) -> SpecializedKernel:
    """Return `integer_product` with a tile of so many rows; `around` is called around all tiles.

    The tile reads codes of `size` bytes.
    """
    configure, release = around
    together = _WIDE_TOGETHER if size == WIDE else rows
    sizes = {"ROWS_OF_TILE": rows, "TOGETHER": together}
    return integer_task.specialize(
        **sizes,
        ON_AMX=on_amx,
        SIZE=size,
        rows_of_sides=rows_of_sides.specialize(SIZE=size),
        read_sides=read_sides.specialize(
            READS=HAS_BYTE_PAIRS and size == WIDE,
            read_rows=_reading(run, size),
            read_bytes=_reading(run, 1),
        ),
        sum_rows=sum_rows.specialize(MEMORY=np.uint16 if size == WIDE else np.uint8),
        sum_bytes=sum_rows.specialize(MEMORY=np.uint8),
        multiply_panel=multiply_panel.specialize(
            widen=panel_widening(size),
            multiply_tiles=multiply_tiles.specialize(**sizes, SIZE=size, tile=tile),
            multiply_split=multiply_tiles.specialize(**sizes, SIZE=1, tile=byte_pair_tile()),
        ),
        configure=configure,
        release=release,
    )


def _reading(run: int, size: int) -> SpecializedKernel:
    """Return `read_rows` of codes of `size` bytes, see `integer_product`."""
    widens = widen_bytes.specialize(SIZE=size)
    gather = gather_rows.specialize(SIZE=size, copy_exactly=_COPY, widen=widens)
    if run:
        chunk = next((each for each in (16, 32) if size * run <= each), CHUNK)
        copies = {"copy": copy_moved(chunk), "copy_runs": copy_runs(chunk)}
        gather = gather_patches.specialize(SIZE=size, **copies)
    return read_rows.specialize(SIZE=size, gather=gather)


def byte_padding(size: int = 1) -> SpecializedKernel:
    """Return the tasks that pad images, a row each, of codes of `size` bytes."""
    widens = widen_bytes.specialize(SIZE=size)
    return pad_bytes_task.specialize(SIZE=size, pad_row=PADDED_ROW, widen=widens)


def byte_packing() -> SpecializedKernel:
    """Return the tasks that pack a right side, a panel each."""
    return pack_bytes_task.specialize()


def all_integer_kernels() -> Iterator[SpecializedKernel]:
    """Yield the kernels that networks of 8-bit integers need, whatever their sizes."""
    yield from (run_integer.specialize(), byte_packing(), byte_padding())
    yield from map(integer_product, RUNS)
    if HAS_WIDE_CODES:
        yield byte_padding(WIDE)
        yield from map(wide_integer_product, RUNS)
