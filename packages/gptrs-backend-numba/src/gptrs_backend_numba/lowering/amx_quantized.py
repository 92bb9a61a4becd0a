"""Which products with quantized weights are computed on AMX."""

from __future__ import annotations

from gptrs_backend_numba.codegen.vector_ir import FEATURES
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.matrix_views import Product

_LEAST_ROWS = 32
"""Below these the vector registers are as fast: codes of a panel are made bytes for too few."""


def suits(product: Product) -> bool:
    """Return whether AMX is there, not switched off, and quicker; results are the same bits."""
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    return "amx-int8" in FEATURES and is_wanted() and product.lhs.rows >= _LEAST_ROWS
