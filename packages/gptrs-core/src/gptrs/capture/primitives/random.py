"""Primitives that make random numbers; `seed` is ui64[2], a key and a counter."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import random


def rng_uniform(seed: Tensor, shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
    """Numbers of [0, 1) for floats, all values for `ui32` and `ui64`."""
    return apply(random.RngUniform(tuple(shape), dtype), seed)


def rng_normal(seed: Tensor, shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
    """Normally distributed floats of mean 0 and variance 1."""
    return apply(random.RngNormal(tuple(shape), dtype), seed)
