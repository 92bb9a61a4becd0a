"""The kernels of `update_pages`: rows of keys or values written to their slots.

In pages of si8 a vector [D] takes D + 4 bytes, codes of 8 bits and an f32 scale: see
`gptrs.functionals.normalization`.
"""

from __future__ import annotations

import numpy as np

from gptrs.functionals.normalization import SCALE_BYTES
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    bits_of_width,
    cast_element_of,
    load_of,
    memory_of,
    unchanged,
)
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import divide, pointer, rint
from gptrs_backend_numba.codegen.tasks import share_tasks

FIELDS = range(7)
ROWS, KV_HEADS, HEAD_DIM, PAGES, PAGE_SIZE, ROW_STEP, HEAD_STEP = FIELDS
"""The numbers of a geometry; the steps are strides of the new rows, in elements."""
PARALLEL_FROM = 8_192
"""Elements from which it pays to share the work: each line of a page is a wait for memory, 50 ns on
a Zen 4, and waking a worker takes microseconds."""


@kernel
def update_pages_task(new, slots, pool, geometry, head, *, SOURCE, TARGET, load, store):
    """Write the rows of one head, one after another: of rows with one slot the last is kept."""
    G = pointer(geometry, np.int64)
    X, I, O = pointer(new, SOURCE), pointer(slots, np.int32), pointer(pool, TARGET)
    head_dim, size = G[HEAD_DIM], G[PAGE_SIZE]
    for row in range(G[ROWS]):
        slot = np.int64(I[row])
        page = slot // size
        source = row * G[ROW_STEP] + head * G[HEAD_STEP]
        target = ((page * G[KV_HEADS] + head) * size + slot - page * size) * head_dim
        for d in range(head_dim):
            O[target + d] = store(load(X[source + d]))
    return 0


@kernel
def update_pages_int8_task(new, slots, pool, geometry, head, *, SOURCE, SCALE_BYTES, load):
    """Write the rounded rows of one head; of rows with one slot the last is kept.

    `HEAD_DIM` of the geometry is that of the new rows.
    """
    G = pointer(geometry, np.int64)
    X, I = pointer(new, SOURCE), pointer(slots, np.int32)
    head_dim, size = G[HEAD_DIM], G[PAGE_SIZE]
    for row in range(G[ROWS]):
        slot = np.int64(I[row])
        page = slot // size
        source = row * G[ROW_STEP] + head * G[HEAD_STEP]
        line = (page * G[KV_HEADS] + head) * size + slot - page * size
        target = pool + line * (head_dim + SCALE_BYTES)
        O = pointer(target, np.int8)
        largest = np.float32(0.0)
        sound = True
        for d in range(head_dim):
            x = abs(load(X[source + d]))
            largest = max(largest, x)
            sound = sound and x == x
        # `max` may drop a NaN: the scale of such a row is NaN, and so is all that it is read as.
        largest = largest if sound else np.float32(np.nan)
        scale = divide(largest, np.float32(127.0))
        # Division by a scale that is 0 or infinite would make codes of NaN.
        usable = largest < np.float32(np.inf) and scale > np.float32(0.0)
        for d in range(head_dim):
            code = np.float32(0.0)
            if usable:
                code = rint(divide(load(X[source + d]), scale))
                code = min(max(code, np.float32(-127.0)), np.float32(127.0))
            O[d] = np.int8(code)
        pointer(target + head_dim, np.float32)[0] = scale
    return 0


@kernel
def run_update_pages(state, function, count, threads, new, slots, pool, geometry):
    """Run the tasks of all heads; return 1, before any, when a slot is out of range."""
    G, I = pointer(geometry, np.int64), pointer(slots, np.int32)
    for row in range(G[ROWS]):
        if I[row] < 0 or I[row] >= G[PAGES] * G[PAGE_SIZE]:
            return 1
    # All slots are checked by now: tasks write without a bound.
    shared = threads if G[ROWS] * G[KV_HEADS] * G[HEAD_DIM] >= PARALLEL_FROM else np.int64(1)
    share_tasks(state, function, count, shared, new, slots, pool, geometry)
    return 0


def update_pages(new: DType, pool: DType) -> SpecializedKernel:
    """Return the task that writes rows of one element type to a pool of another.

    A pool of si8 has codes and scales: rows are rounded.
    """
    if pool is dtypes.si8:
        return update_pages_int8_task.specialize(
            SOURCE=memory_of(new), SCALE_BYTES=SCALE_BYTES, load=load_of(new)
        )
    if new is pool:
        element = bits_of_width(new.itemsize)
        return update_pages_task.specialize(
            SOURCE=element, TARGET=element, load=unchanged, store=unchanged
        )
    return update_pages_task.specialize(
        SOURCE=memory_of(new),
        TARGET=memory_of(pool),
        load=load_of(new),
        store=cast_element_of(new, pool),
    )
