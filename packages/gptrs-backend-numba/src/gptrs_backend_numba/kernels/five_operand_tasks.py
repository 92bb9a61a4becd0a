"""Tasks that read up to five tensors: addresses after the first two precede the geometry."""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks

EXTRA = 3
"""Number of other tensors of a call; those that a task does not need may be any address."""


@kernel
def run_with_extra(state, function, count, threads, a, b, x, y, z, out, geometry):
    """Run tasks on up to `threads` threads; the geometry begins with room for x, y and z."""
    G = pointer(geometry, np.int64)
    G[0], G[1], G[2] = x, y, z
    share_tasks(state, function, count, threads, a, b, out, geometry)
    return 0
