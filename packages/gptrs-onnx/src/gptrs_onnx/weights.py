"""The large initializers of an ONNX file as a source of parameters, read where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from gptrs.api import CheckpointError, TensorType
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.node import shown, stored_array


class InitializerSource:
    """Initializers by name; `load` gives a read-only view of the file or of the model in memory."""

    def __init__(self, stored: dict[str, ir.TensorProtocol]) -> None:
        self._stored = stored

    def names(self) -> Sequence[str]:
        """Return the names of all initializers."""
        return tuple(self._stored)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such initializer."""
        tensor = self._tensor(name)
        sizes = tuple(int(size) for size in tensor.shape)  # pyright: ignore[reportArgumentType]
        return TensorType(dtype_of(tensor.dtype, f"the initializer `{shown(name)}`"), sizes)

    def load(self, name: str) -> np.ndarray:
        """Return the elements; ModelError where the file does not hold them."""
        wanted = self.type_of(name)
        found = stored_array(self._tensor(name), f"the initializer `{shown(name)}`")
        if found.shape != wanted.shape:
            raise CheckpointError(f"the initializer `{shown(name)}` is {found.shape}, not {wanted}")
        return found

    def _tensor(self, name: str) -> ir.TensorProtocol:
        found = self._stored.get(name)
        if found is None:
            raise CheckpointError(f"the model has no initializer `{shown(name)}`")
        return found
