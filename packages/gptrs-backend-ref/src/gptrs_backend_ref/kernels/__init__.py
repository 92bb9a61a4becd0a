"""One small NumPy function per op; importing this package fills the table of the backend."""

from gptrs_backend_ref.kernels import (
    contraction,
    elementwise,
    indexing,
    layout,
    quantization,
    reduction,
    window,
)
from gptrs_backend_ref.table import TABLE

__all__ = [
    "TABLE",
    "contraction",
    "elementwise",
    "indexing",
    "layout",
    "quantization",
    "reduction",
    "window",
]
