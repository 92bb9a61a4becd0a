"""The large constants of a module as a source of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.api import CheckpointError
from gptrs.api.programs import TensorType
from gptrs_backend_jax.stablehlo.reading.module import ConstantArray, StableHlo

LARGE: Final = 1024
"""Constants of more elements are weights."""


def name_of(number: int) -> str:
    """Return the name of the constant with the value number `number`."""
    return f"constant{number}"


class ConstantSource:
    """Constants by name, held in memory."""

    def __init__(self, module: StableHlo) -> None:
        self._held: dict[str, ConstantArray] = {}
        for number, operation in module.definitions.items():
            held = operation.attributes.get("value")
            if not isinstance(held, ConstantArray) or operation.name != "stablehlo.constant":
                continue
            if held.array.ndim and held.array.size > LARGE:
                self._held[name_of(number)] = held

    def names(self) -> Sequence[str]:
        """Return the names of all constants."""
        return tuple(self._held)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such constant."""
        held = self._constant(name)
        return TensorType(held.type.dtype, held.shape)

    def load(self, name: str) -> np.ndarray:
        """Return the elements."""
        return self._constant(name).whole()

    def _constant(self, name: str) -> ConstantArray:
        found = self._held.get(name)
        if found is None:
            raise CheckpointError(f"the module has no constant `{name}`")
        return found
