"""Weights in another floating-point type: each value becomes the nearest one that the type has."""

from __future__ import annotations

import numpy as np

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.quoting import quoted

CONVERTIBLE = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16)
"""The types that weights are converted from; floats of 8 bits come with scales of their own."""


def in_dtype(tensor: OutgoingTensor, dtype: DType) -> OutgoingTensor:
    """`tensor` with its elements rounded to `dtype`; itself if it has another kind of elements.

    Of two values equally near, the even one is taken (IEEE 754, 4.3.1). Its parts raise
    CheckpointError for a finite value beyond the range of `dtype`, instead of giving infinity.
    """
    if tensor.type.dtype is dtype or tensor.type.dtype not in CONVERTIBLE:
        return tensor

    def parts():
        for part in tensor.parts():
            yield _checked(tensor.name, part, rounded(part, dtype), dtype)

    return OutgoingTensor(tensor.name, tensor.type.with_dtype(dtype), parts)


def rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the elements rounded once to `dtype`, ties to even; infinity beyond its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype == np.float64 and dtype is dtypes.bf16:
            array = _to_odd_f32(array)
        return array.astype(dtype.numpy)


def _to_odd_f32(array: np.ndarray) -> np.ndarray:
    """f64 in f32, truncated, with the last bit set where that loses anything.

    Rounded on to a narrower type, this gives what rounding at once does (Boldo and Melquiond,
    Emulation of FMA and correctly rounded sums, IEEE Transactions on Computers 57, 2008).
    """
    nearest = array.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(array)
    bits |= (nearest != array) & np.isfinite(array)
    return nearest


def _checked(name: str, before: np.ndarray, after: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signaling NaN is none of both
        lost = np.isinf(after) & np.isfinite(before)
    if lost.any():
        largest = np.abs(before[lost].astype(np.float64)).max()
        raise CheckpointError(
            f"tensor {quoted(name)} has values up to {largest:.4g}, beyond the range of {dtype}",
            hint="convert to bf16 or f32, which have a wider range" if dtype is dtypes.f16
            else "convert to a wider type",
        )  # fmt: skip
    return after
