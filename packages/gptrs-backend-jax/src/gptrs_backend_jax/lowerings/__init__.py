"""One small function of `jax.lax` calls per op; importing this package fills the table."""

from gptrs_backend_jax.lowering import TABLE
from gptrs_backend_jax.lowerings import (
    contraction,
    elementwise,
    indexing,
    layout,
    quantization,
    reduction,
)

__all__ = ["TABLE", "contraction", "elementwise", "indexing", "layout", "quantization", "reduction"]
