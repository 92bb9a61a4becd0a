"""A tensor of a checkpoint as users see it: its type now, its value when they ask for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gptrs.checkpoint.param_source import ParamSource
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType


@dataclass(frozen=True)
class StoredTensor:
    """A tensor by its name in the checkpoint, as it is stored there."""

    name: str
    type: TensorType
    source: ParamSource = field(repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of its axes."""
        return tuple(int(size) for size in self.type.shape)

    @property
    def dtype(self) -> DType:
        """Return its element type."""
        return self.type.dtype

    def numpy(self) -> np.ndarray:
        """Read the value, a view of mapped memory where the file allows it; do not write to it."""
        return self.source.load(self.name)
