"""Kernel that puts zeros around images."""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.convolution.job import PAD_FIELDS

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
