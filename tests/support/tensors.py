"""Tensors of zeros, for calls of which only shapes and element types matter."""

from __future__ import annotations

import numpy as np

import gptrs


def f32(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape, np.float32))


def si64(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape, np.int64))


def i1(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape, bool))


def cf32(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape, np.complex64))
