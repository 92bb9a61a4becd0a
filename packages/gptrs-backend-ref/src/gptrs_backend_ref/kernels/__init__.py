"""One small NumPy function per op; importing this package fills the table of the backend."""

from gptrs_backend_ref.kernels import (
    contraction,
    creation,
    elementwise,
    indexing,
    layout,
    reduction,
)
from gptrs_backend_ref.table import TABLE

__all__ = [
    "TABLE",
    "contraction",
    "creation",
    "elementwise",
    "indexing",
    "layout",
    "reduction",
]
