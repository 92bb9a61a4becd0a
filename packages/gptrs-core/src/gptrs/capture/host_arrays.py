"""Tensors and arrays of other libraries that exchange memory without a copy."""

from __future__ import annotations

import numpy as np

from gptrs.capture import execute
from gptrs.capture.graph import Stored
from gptrs.capture.tensor import Tensor, array_type


def share_array(array: np.ndarray) -> Tensor:
    """Return a tensor over the memory of `array`, which is read when a program runs.

    The caller does not change the array while something that depends on the tensor is still to be
    computed. A backend copies what it cannot work on, such as arrays that are not in row-major
    order. ProgramError for foreign dtypes.
    """
    return Tensor(Stored(array_type(array.dtype, array.shape), array, None))


def take_array(tensor: Tensor) -> np.ndarray:
    """Return the value of `tensor` as an array of the caller's own, computed first if need be.

    Without a copy where nobody else holds the memory: a result of a program that was not read
    before. The tensor is consumed then: reading it raises ConsumedTensorError.
    """
    source = tensor.source
    if not isinstance(source, Stored) or source.viewed or source.consumed or not source.backend:
        return tensor.numpy().copy()
    found = execute.host_value(source)
    if not found.flags.writeable:
        return found.copy()
    source.consumed = True
    return found
