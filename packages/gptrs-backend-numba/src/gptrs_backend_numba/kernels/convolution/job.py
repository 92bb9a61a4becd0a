"""Kernels of a job whose tasks each make several calls of other task functions, one after another.

What the calls of a task hand to one another lies in memory that belongs to the task as long as it
runs: it stays in the nearest caches of the processor that made it. A geometry begins with `FIELDS`
and the addresses of the operands; for each task follow its steps, each `STEP_FIELDS` and then the
geometry of the function that it calls.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.system import atomic_store, exchange_if
from gptrs_backend_numba.codegen.tasks import call_task, share_tasks

# The numbers that the kernels of convolutions read, by name: their positions in a geometry.


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

ROUND_FIELDS = (
    "H", "W", "C", "TOP", "LEFT", "HEIGHT", "WIDTH",  # rows and positions, also with the padding
    "DEPTH",  # channels of the result, an even number
    "ROWS", "ROWS_A_TASK",
)  # fmt: skip
"""The names of the numbers of `rounding.round_task`."""

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


FIELDS = (
    "SLOTS", "SLOT_BYTES",  # memories of tasks: how many, and how large
    "FLAGS",  # where there is a word for each, not 0 while a task has it
    "STARTS",  # where the positions of the first steps of all tasks are, and of the end
)  # fmt: skip
"""The names of the numbers of a geometry; positions count words."""
SLOTS, SLOT_BYTES, FLAGS, STARTS = range(len(FIELDS))
OPERANDS = len(FIELDS)
"""Position of the first address of an operand: the memory of all tasks, then the others."""
MOST_OPERANDS = 19
"""Number of operands of a job; where it has fewer, the last ones may be any address."""

PLACES = ("X", "RIGHT", "OUT", "SCALE", "SHIFT", "RESIDUAL", "BOUNDS", "EXTRA")
"""Arguments of a step: the number of an operand and an offset in bytes each."""
STEP_FIELDS = (
    "FUNCTION", "COUNT",  # a task function, and how many tasks of it there are
    "WORDS",  # of the function's geometry
    "IS_CONVOLUTION",  # whether that begins with the fields of a convolution
    *(f"{name}_{part}" for name in PLACES for part in ("OPERAND", "OFFSET")),
)  # fmt: skip
"""The names of the numbers of a step."""
STEP_WORDS = len(STEP_FIELDS)
FUNCTION, COUNT, WORDS, IS_CONVOLUTION = range(4)
X, RIGHT, OUT, OF_SCALE, OF_SHIFT, OF_RESIDUAL, OF_BOUNDS, OF_EXTRA = positions(
    STEP_FIELDS, " ".join(f"{name}_OPERAND" for name in PLACES)
)


@register_jitable
def operand(geometry, scratch, index):
    """Return the address at an operand and an offset; operand 0 is the task's own memory."""
    if geometry[index] == 0:
        return scratch + geometry[index + 1]
    return geometry[OPERANDS + geometry[index]] + geometry[index + 1]


@kernel
def job_task(unused, unused_too, nor_this, geometry, task):
    """Run all calls of a task."""
    G = pointer(geometry, np.int64)
    flags, slot = geometry + 8 * G[FLAGS], np.int64(0)
    while not exchange_if(flags + 8 * slot, 0, 1):
        slot = slot + 1 if slot + 1 < G[SLOTS] else 0
    scratch = G[OPERANDS] + slot * G[SLOT_BYTES]
    at, end = G[G[STARTS] + task], G[G[STARTS] + task + 1]
    while at < end:
        own = geometry + 8 * (at + STEP_WORDS)
        function, count = G[at + FUNCTION], G[at + COUNT]
        C = pointer(own, np.int64)
        if G[at + IS_CONVOLUTION]:
            C[SCALE] = operand(G, scratch, at + OF_SCALE)
            C[SHIFT] = operand(G, scratch, at + OF_SHIFT)
            C[BOUNDS] = operand(G, scratch, at + OF_BOUNDS)
            C[EXTRA] = operand(G, scratch, at + OF_EXTRA)
            C[RESIDUAL] = operand(G, scratch, at + OF_RESIDUAL) if C[HAS_RESIDUAL] else 0
        x = operand(G, scratch, at + X)
        right = operand(G, scratch, at + RIGHT)
        out = operand(G, scratch, at + OUT)
        for number in range(count):
            call_task(function, x, right, out, own, number)
        at += STEP_WORDS + G[at + WORDS]
    atomic_store(flags + 8 * slot, 0)
    return 0


@kernel
def run_job(
    state, function, count, threads,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, geometry,
):  # fmt: skip
    """Run the tasks of a job; the first operand is the memory of all tasks, the last the result."""
    addresses = (
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18
    )  # fmt: skip
    G = pointer(geometry, np.int64)
    for number in range(MOST_OPERANDS):
        G[OPERANDS + number] = addresses[number]
    share_tasks(state, function, count, threads, p0, p0, p0, geometry)
    return 0


# Zeros around images.


H, W, TOP, LEFT, HEIGHT, WIDTH, ROWS, ROWS_A_TASK = range(len(PAD_FIELDS))


@kernel
def pad_task(x, unused, out, geometry, task):
    """Copy some rows of images with zeros around them."""
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
