"""Arrays to torch and back, bit for bit, and what a primitive gives on the reference backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

torch = pytest.importorskip("torch", reason="parity needs torch")

TORCH = {
    dtypes.i1: torch.bool,
    dtypes.si8: torch.int8,
    dtypes.ui8: torch.uint8,
    dtypes.si16: torch.int16,
    dtypes.si32: torch.int32,
    dtypes.si64: torch.int64,
    dtypes.f8e4m3: torch.float8_e4m3fn,
    dtypes.f8e5m2: torch.float8_e5m2,
    dtypes.bf16: torch.bfloat16,
    dtypes.f16: torch.float16,
    dtypes.f32: torch.float32,
    dtypes.f64: torch.float64,
    dtypes.cf32: torch.complex64,
    dtypes.cf64: torch.complex128,
}
"""The element types that torch has too, but for unsigned ones that it hardly computes with."""

INTEGERS = (dtypes.si8, dtypes.ui8, dtypes.si16, dtypes.si32, dtypes.si64)
NARROW = (dtypes.f8e4m3, dtypes.f8e5m2)
"""Float types that torch stores and converts but does not compute in."""
FLOATS = (dtypes.bf16, dtypes.f16, dtypes.f32, dtypes.f64)
COMPLEX = (dtypes.cf32, dtypes.cf64)
_CARRIERS = {dtypes.bf16: np.int16, dtypes.f8e4m3: np.uint8, dtypes.f8e5m2: np.uint8}
"""Types that torch and NumPy exchange as integers of the same width."""


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A torch tensor with the bits of `array`, which is copied."""
    copy = np.array(array, order="C", copy=True)
    dtype = dtypes.from_numpy(copy.dtype)
    if dtype in _CARRIERS:
        return torch.from_numpy(copy.view(_CARRIERS[dtype])).view(TORCH[dtype])
    return torch.from_numpy(copy)


def computed(reference: Backend, function: Callable[..., Any], *arrays: np.ndarray) -> list:
    """The results of a function of tensors on the reference backend."""
    with gptrs.use_backend(reference):
        results = function(*map(gptrs.tensor, arrays))
        listed = results if isinstance(results, tuple) else (results,)
        return [result.numpy() for result in listed]


def edge_values(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values at the edges of a type, drawn at random: zeros, extremes, infinities, NaN."""
    generator = np.random.default_rng(seed)
    if dtype.is_complex:
        part = dtypes.f32 if dtype is dtypes.cf32 else dtypes.f64
        pair = edge_values(part, (*shape, 2), seed)
        return np.asarray(pair.view(dtype.numpy).reshape(shape))
    if dtype.is_bool:
        return np.asarray(generator.random(shape) < 0.5)
    if dtype.is_float:
        least = 2.0**-9 if dtype.bits == 8 else 2.0**-24
        greatest = {"f8e4m3": 448.0, "f8e5m2": 57344.0}.get(dtype.name, 65280.0)
        pool = [0.0, -0.0, 1.0, -2.5, 3.0, least, greatest, -greatest]
        pool += [math.inf, -math.inf, math.nan, math.nan]
        return generator.choice(np.array(pool), shape).astype(np.float32).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    pool = [0, 1, 2, 7, limits.min, limits.min + 1, limits.max, limits.max - 1]
    return generator.choice(np.array(pool, dtype.numpy), shape)


def moderate_values(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small numbers: integers of one digit, floats of a few bits, exact in every type."""
    values = np.random.default_rng(seed).integers(-9, 10, (*shape, 2))
    if dtype.kind == "unsigned":
        values = abs(values)
    if dtype.is_complex:
        return (values[..., 0] / 4 + 1j * values[..., 1] / 4).astype(dtype.numpy)
    if dtype.is_float:
        return (values[..., 0] / 4).astype(np.float32).astype(dtype.numpy)
    return values[..., 0].astype(dtype.numpy)


def assert_same_bits(found: np.ndarray, expected: torch.Tensor) -> None:
    """One type, one shape, the same bits, those of NaN included."""
    ours = to_torch(found)
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
    assert torch.equal(_bytes(ours), _bytes(expected)), f"{ours} is not {expected}"


def assert_same_elements(found: np.ndarray, expected: torch.Tensor) -> None:
    """One type, one shape, the same elements; -0.0 is not 0.0, but any NaN is any other."""
    ours = to_torch(found)
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
    parts = [torch.view_as_real(t) if t.is_complex() else t for t in (ours, expected)]
    plain = [_bytes(torch.where(part.isnan(), 0, part)) for part in parts]
    assert torch.equal(parts[0].isnan(), parts[1].isnan()), f"{ours} is not {expected}"
    assert torch.equal(*plain), f"{ours} is not {expected}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def assert_close(
    found: np.ndarray, expected: torch.Tensor, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """One type, one shape, values that differ by no more than said, NaN where `expected` has it."""
    ours = to_torch(found)
    torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol, equal_nan=True)
