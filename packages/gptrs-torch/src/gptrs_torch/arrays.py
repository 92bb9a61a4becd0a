"""Tensors of torch as NumPy arrays and back, over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from gptrs.api.programs import dtypes

_BFLOAT16 = dtypes.bf16.numpy
_from_numpy = cast("Callable[[np.ndarray], torch.Tensor]", cast("Any", torch).from_numpy)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the elements in the memory of `tensor`, copied only if it is not in row-major order.

    NumPy has no bfloat16 of its own: its bits are viewed as those of ml_dtypes.
    """
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.dtype is torch.bfloat16:
        bits = plain.contiguous().view(torch.int16).numpy()
        return bits.view(_BFLOAT16)
    array = plain.numpy()
    return array if array.flags.c_contiguous else array.copy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the memory of `array`, which may be written to."""
    if array.dtype == _BFLOAT16:
        return _from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return _from_numpy(array)
