"""The fusions of calls of functionals into calls of this backend's kernels, one module a family."""

from __future__ import annotations

import os

VARIABLE = "GPTRS_NUMBA_FUSE"


def is_on() -> bool:
    """Return whether fusions run: `GPTRS_NUMBA_FUSE=0` helps to find wrong ones."""
    return os.environ.get(VARIABLE) != "0"
