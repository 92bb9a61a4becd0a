"""Calls that share tasks of more tensors than a task has arguments: their addresses precede the
rest of the geometry.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks

MOST_INPUTS = 10
"""The most tensors that a task with one result reads, those of one element among them: the sum of
two quantized tensors, quantized again, has two others, and eight numbers."""
OTHERS = MOST_INPUTS - 2
"""Addresses in its geometry: of the inputs after the second."""
MOST_TENSORS = 16
"""The most operands and results of a task with several results together."""
OTHERS_OF_SEVERAL = MOST_TENSORS - 3
"""Addresses in its geometry: all that are not arguments of its own."""


@kernel
def run_with_others(
    state, function, count, threads, a, b, c, d, e, f, g, h, i, j, out, geometry
):  # fmt: skip
    """Run tasks on up to `threads` threads; inputs that they do not have may be any address."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2], G[3], G[4], G[5], G[6], G[7] = c, d, e, f, g, h, i, j
    share_tasks(state, function, count, threads, a, b, out, geometry)
    return 0


@kernel
def run_several(
    state, function, count, threads, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, out, geometry
):
    """Run tasks with several results, as `run_with_others`."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2], G[3], G[4], G[5], G[6] = c, d, e, f, g, h, i
    G[7], G[8], G[9], G[10], G[11], G[12] = j, k, l, m, n, o
    share_tasks(state, function, count, threads, a, b, out, geometry)
    return 0
