"""Tensors of torch as a source of parameters: read where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gptrs.api import CheckpointError, TensorType
from gptrs_torch.arrays import array_of
from gptrs_torch.element_types import dtype_of


class TensorSource:
    """Tensors by name; `load` gives a view of the memory of torch."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Sequence[str]:
        """Return the names of all tensors."""
        return tuple(self._tensors)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such tensor."""
        held = self._tensor(name)
        return TensorType(dtype_of(held.dtype, f"the tensor `{name}`"), tuple(held.shape))

    def load(self, name: str) -> np.ndarray:
        """Return the elements, in the memory of torch where they are in row-major order."""
        return array_of(self._tensor(name))

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None:
            raise CheckpointError(f"the graph has no tensor `{name}`")
        return found
