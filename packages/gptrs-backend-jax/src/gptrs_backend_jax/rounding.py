"""Products that are rounded by themselves, where a sum follows them."""

from __future__ import annotations

import numpy as np
from jax import Array, lax

_NO_PRODUCT = -0x5A5A5A5A
"""The bits of a NaN that no multiplication gives, as an integer of the width of the float."""


def unfused(product: Array) -> Array:
    """Return `product`, f32 or f64, so that no compiler combines it with what follows.

    LLVM makes one operation that rounds once (FMA) of `a * b + c`, whatever XLA is told about
    precision. What is between them here, an integer operation that changes nothing, stops it.
    """
    whole = np.dtype(f"int{8 * product.dtype.itemsize}")
    bits = lax.bitcast_convert_type(product, whole)
    flipped = lax.convert_element_type(bits == np.array(_NO_PRODUCT, whole), whole)
    return lax.bitcast_convert_type(bits ^ flipped, product.dtype)
