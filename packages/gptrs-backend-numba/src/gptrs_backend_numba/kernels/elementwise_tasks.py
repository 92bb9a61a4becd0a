"""The call that shares an elementwise kernel between threads, block by block."""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks

MOST_INPUTS = 6
"""The most tensors that a shared kernel reads."""
EXTRA = MOST_INPUTS - 2
"""Addresses that precede the sizes in a geometry: of the inputs after the second."""


@kernel
def run_elementwise(state, function, count, threads, a, b, x, y, z, w, out, geometry):
    """Run the tasks of a kernel; inputs that it does not have may be any address."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2], G[3] = x, y, z, w
    share_tasks(state, function, count, threads, a, b, out, geometry)
    return 0
