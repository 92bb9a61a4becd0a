"""Sources of the kernels of convolutions: padding, the walk over tiles, depthwise rows.

A tile is up to `ROWS` neighbouring positions of a row of the result, for a panel of channels. All
offsets and steps are in bytes. Borders of tiles and tasks depend on sizes alone, and each sum on
the window and the channels alone, so the number of threads never shows in a result.
"""

from __future__ import annotations

import re

COMMON = ("SCALE", "SHIFT", "RESIDUAL", "BOUNDS", "EXTRA", "HAS_RESIDUAL")
"""Addresses that the call fills in, and whether there is a residual: all geometries begin so."""

TILE_FIELDS = (
    *COMMON,
    "N", "K",  # channels of the result, products in a sum
    "RUNS", "RUN",  # what one position sees: runs of numbers, each of this length
    "BATCH_STEP", "RIGHT_STEP", "OUT_BATCH_STEP",  # from one independent product to the next
    "IMAGE_STEP", "ROW_STEP", "STEP",  # between images, rows and positions on the left side
    "ROWS_AN_IMAGE", "POSITIONS",  # rows of the result, positions of a row
    "TILES",  # of a row; the first POSITIONS % TILES have one position more than the others
    "ITEMS",  # tiles in all
    "ITEMS_A_TASK", "PANELS_A_TASK",
    "TALL", "SHORT", "TALL_HALF", "SHORT_HALF",  # addresses of functions
    "TABLE",  # where the offsets of the runs begin
)  # fmt: skip
"""The names of the numbers of a geometry, which the offsets of the runs follow."""

DEPTHWISE_FIELDS = (
    *COMMON,
    "H", "W", "C", "OH", "OW",
    "KH", "KW", "SH", "SW", "PT", "PL", "DH", "DW",  # window, stride, padding before, dilation
    "ITEMS", "ITEMS_A_TASK",  # rows of the result
    "CHANNELS_AT_ONCE",
    "FIRST", "LAST",  # the positions between which a window lies within the row
)  # fmt: skip

PAD_FIELDS = ("H", "W", "TOP", "LEFT", "HEIGHT", "WIDTH", "ROWS", "ROWS_A_TASK")
"""Rows and floats a row of the image, what is before them, rows and floats with the padding."""


def placed(source: str, fields: tuple[str, ...]) -> str:
    """`source` with the names in `G[NAME]` as numbers."""
    return re.sub(r"\bG\[([A-Z_]+)\]", lambda found: f"G[{fields.index(found[1])}]", source)


RUN_SOURCE = placed(
    """
def kernel(state, function, count, threads, x, right, scale, shift, residual, bounds, extra, out,
           geometry):
    G = pointer(geometry, np.int64)
    G[SCALE], G[SHIFT], G[BOUNDS], G[EXTRA] = scale, shift, bounds, extra
    G[RESIDUAL] = residual if G[HAS_RESIDUAL] else 0
    if threads < 2 or count < 2:
        for task in range(count):
            call_task(function, x, right, out, geometry, task)
        return 0
    publish(state, function, count, threads, x, right, out, geometry)
    while take_task(state, 0):
        pass
    await_others(state, count)
    return 0
""",
    COMMON,
)
"""Runs the tasks of a convolution; operands that there are not may be any address."""

TILES_SOURCE = placed(
    """
def kernel(x, right, out, geometry, task):
    G = pointer(geometry, np.int64)
    n, tiles = G[N], G[TILES]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    blocks = (G[ITEMS] + G[ITEMS_A_TASK] - 1) // G[ITEMS_A_TASK]
    batch = task // (blocks * columns)
    block = (task - batch * blocks * columns) // columns
    first_panel = (task - (batch * blocks + block) * columns) * G[PANELS_A_TASK]
    first_item = block * G[ITEMS_A_TASK]
    last_item = min(first_item + G[ITEMS_A_TASK], G[ITEMS])
    whole, taller = G[POSITIONS] // tiles, G[POSITIONS] % tiles
    x += batch * G[BATCH_STEP]
    right += batch * G[RIGHT_STEP]
    out += batch * G[OUT_BATCH_STEP]
    for panel in range(first_panel, min(first_panel + G[PANELS_A_TASK], panels)):
        width = min(PANEL, n - panel * PANEL)
        at = 4 * PANEL * panel
        weights = right + at * G[K]
        # The next panel, also where it belongs to the next task: each tile asks for a half.
        following = weights + 4 * PANEL * G[K]
        tall, short = G[TALL], G[SHORT]
        if width <= FLOATS:
            tall, short = G[TALL_HALF], G[SHORT_HALF]
        item = first_item
        while item < last_item:
            row = item // tiles
            tile = item - row * tiles
            position = tile * whole + min(tile, taller)
            image = row // G[ROWS_AN_IMAGE]
            left = x + image * G[IMAGE_STEP] + (row - image * G[ROWS_AN_IMAGE]) * G[ROW_STEP]
            left += position * G[STEP]
            target = 4 * n * (row * G[POSITIONS] + position) + at
            residual = G[RESIDUAL]
            if residual:
                residual += target
            # Neighbours of one size are one call: it takes as long as some products.
            function, count = short, min(tiles - tile, last_item - item)
            if tile < taller:
                function, count = tall, min(taller - tile, last_item - item)
            call_compiled(function, left, weights, out + target, residual, at, geometry, following,
                          item, count)
            item += count
    return 0
""",
    TILE_FIELDS,
)
"""Some panels of some tiles, panel by panel."""

_TILE = placed(
    """
def kernel(left, right, out, residual, at, geometry, ahead, item, count):
    G = pointer(geometry, np.int64)
    row, step, table = 4 * G[N], G[STEP], geometry + 8 * G[TABLE]
    scale, shift, width = G[SCALE] + at, G[SHIFT] + at, G[N] - at // 4
    for i in range(item, item + count):
        conv_tile_SIZE(left, step, table, G[RUNS], G[RUN], right, width, scale, shift, residual,
                       G[BOUNDS], out, row, ahead + (i & 1) * 64 * G[K])
        left += ROWS * step
        out += ROWS * row
        if residual:
            residual += ROWS * row
    return 0
""",
    TILE_FIELDS,
)

PAD_SOURCE = placed(
    """
def kernel(x, unused, out, geometry, task):
    G = pointer(geometry, np.int64)
    X, O = pointer(x, np.float32), pointer(out, np.float32)
    w, left, width = G[W], G[LEFT], G[WIDTH]
    for row in range(task * G[ROWS_A_TASK], min((task + 1) * G[ROWS_A_TASK], G[ROWS])):
        image = row // G[HEIGHT]
        i = row - image * G[HEIGHT] - G[TOP]
        o = row * width
        if i < 0 or i >= G[H]:
            for j in range(width):
                O[o + j] = 0
            continue
        source = (image * G[H] + i) * w
        for j in range(left):
            O[o + j] = 0
        for j in range(w):
            O[o + left + j] = X[source + j]
        for j in range(left + w, width):
            O[o + j] = 0
    return 0
""",
    PAD_FIELDS,
)
"""Images with zeros around them, some rows a task."""

DEPTHWISE_SOURCE = placed(
    """
def kernel(x, weight, out, geometry, task):
    G = pointer(geometry, np.int64)
    line = 4 * G[C]
    step, column, row_step = line * G[SW], line * G[DW], line * G[W] * G[DH]
    begin, end = task * G[ITEMS_A_TASK], min((task + 1) * G[ITEMS_A_TASK], G[ITEMS])
    for channel in range(0, G[C], G[CHANNELS_AT_ONCE]):
        channels, c = min(G[CHANNELS_AT_ONCE], G[C] - channel), 4 * channel
        scale, shift = G[SCALE] + c, G[SHIFT] + c
        for row in range(begin, end):
            image = row // G[OH]
            top = (row - image * G[OH]) * G[SH] - G[PT]
            i = max(0, -(top // G[DH]))
            rows = min(G[KH], (G[H] - top + G[DH] - 1) // G[DH]) - i
            source = x + (image * G[H] + top + i * G[DH]) * G[W] * line + c
            position = 0
            while position < G[OW]:
                left, j, columns = position * G[SW] - G[PL], np.int64(0), G[KW]
                count = 1
                if G[FIRST] <= position < G[LAST]:
                    count = 8 if position + 8 <= G[LAST] else 4 if position + 4 <= G[LAST] else 1
                else:
                    j = max(0, -(left // G[DW]))
                    columns = min(G[KW], (G[W] - left + G[DW] - 1) // G[DW]) - j
                place = (row * G[OW] + position) * line + c
                residual = G[RESIDUAL]
                if residual:
                    residual += place
                place += out
                at = source + (left + j * G[DW]) * line
                factor = weight + (i * G[KW] + j) * line + c
                if count == 8:
                    depthwise_8(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, G[BOUNDS], place)
                elif count == 4:
                    depthwise_4(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, G[BOUNDS], place)
                else:
                    depthwise_1(at, step, row_step, rows, column, columns, factor, G[KW] * line,
                                channels, line, scale, shift, residual, G[BOUNDS], place)
                position += count
    return 0
""",
    DEPTHWISE_FIELDS,
)
"""Some rows of a depthwise convolution; taps outside of the image are left out.

Some channels at a time: of these the nearest cache keeps the rows of a window for the next row.
"""


_LINES = placed(
    """
def kernel(x, weight, out, geometry, task):
    G = pointer(geometry, np.int64)
    line = 4 * G[C]
    begin, end = task * G[ITEMS_A_TASK], min((task + 1) * G[ITEMS_A_TASK], G[ITEMS])
    left, count, right = G[FIRST], G[LAST] - G[FIRST], G[OW] - G[LAST]
    for channel in range(0, G[C], FLOATS):
        c = 4 * channel
        channels, factors = G[C] - channel, weight + c
        scale, shift, bounds = G[SCALE] + c, G[SHIFT] + c, G[BOUNDS]
        for row in range(begin, end):
            image = row // G[OH]
            top = (row - image * G[OH]) * STRIDE - G[PT]
            source = x + ((image * G[H] + top) * G[W] - G[PL]) * line + c
            place = out + row * G[OW] * line + c
            if top < 0:
                depthwise_line_STRIDE_1_3(source, G[W] * line, line, factors, left, count, right,
                                          channels, scale, shift, bounds, place)
            elif top + 3 > G[H]:
                depthwise_line_STRIDE_0_2(source, G[W] * line, line, factors, left, count, right,
                                          channels, scale, shift, bounds, place)
            else:
                depthwise_line_STRIDE_0_3(source, G[W] * line, line, factors, left, count, right,
                                          channels, scale, shift, bounds, place)
    return 0
""",
    DEPTHWISE_FIELDS,
)
"""Some rows of a depthwise convolution with a window of 3x3, a register of channels at a time."""


def lines_source(stride: int) -> str:
    """Rows of a depthwise convolution with windows of 3x3, `stride` positions apart."""
    return _LINES.replace("STRIDE", str(stride))


def tile_source(rows: int, vectors: int, asks: bool) -> str:
    """Tiles of one size, which may ask for the next panel; see `convolution_ir.conv_tile`."""
    return _TILE.replace("SIZE", f"{rows}_{vectors}_{int(asks)}").replace("ROWS *", f"{rows} *")
