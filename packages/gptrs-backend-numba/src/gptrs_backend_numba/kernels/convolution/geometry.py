"""The numbers that the kernels of convolutions read, by name: their positions in a geometry."""

from __future__ import annotations

COMMON = ("SCALE", "SHIFT", "RESIDUAL", "BOUNDS", "EXTRA", "HAS_RESIDUAL", "ACTIVATION")
"""All geometries begin so: addresses that the call fills in, whether there is a residual, and the
address of `activate`, 0 where bounds are all."""
SCALE, SHIFT, RESIDUAL, BOUNDS, EXTRA, HAS_RESIDUAL, ACTIVATION = range(len(COMMON))

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
    "PANELS_A_GROUP", "GROUP_STEP",  # panels that read the same channels, from these to the next
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

WINOGRAD_FIELDS = (
    *COMMON,
    "H", "W", "C", "TOP", "LEFT",  # the image and the padding before it
    "OH", "OW",
    "DOWN", "ACROSS",  # tiles of an image
    "FIRST", "COUNT", "COUNT_A_TASK",  # tiles of this call
)  # fmt: skip


def positions(fields: tuple[str, ...], names: str) -> tuple[int, ...]:
    """Return the position of each of the `names`, separated by spaces, among the `fields`."""
    return tuple(fields.index(name) for name in names.split())
