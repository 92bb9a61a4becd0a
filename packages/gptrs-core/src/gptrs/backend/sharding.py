"""Weights and arguments on the devices of a mesh: names of axes, and how they are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct

from gptrs.backend.settings import Mesh
from gptrs.ir.tensor_type import TensorType

RULES: Final[Mapping[str, str]] = {
    "batch": "data",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "tensor": "tensor",
}
"""Maps the name of a tensor axis to the mesh axis that splits it; other axes are whole."""


class Axis(Struct, frozen=True):
    """The name of an axis of `units` equal, indivisible parts, such as heads."""

    name: str
    units: int | None = None


Axes = tuple[Axis | str | None, ...]
"""The name of each axis of a tensor, None for axes that are never split."""
Sharding = tuple[str | None, ...]
"""For each axis of a tensor, the mesh axis that splits it, None if it is whole."""


def sharding_of(mesh: Mesh, shape: Sequence[int], axes: Axes | None) -> Sharding:
    """Return how a tensor is split over `mesh`; an axis not divisible by its mesh axis stays whole.

    Each mesh axis splits at most one tensor axis, the first possible one.
    """
    found: list[str | None] = [None] * len(shape)
    if axes is None or len(axes) != len(shape):
        return tuple(found)
    for number, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        name, units = (axis.name, axis.units) if isinstance(axis, Axis) else (axis, None)
        target = RULES.get(name or "")
        parts = mesh.sizes.get(target or "", 1)
        if target not in found and parts > 1 and size and (units or size) % parts == 0:
            found[number] = target
    return tuple(found)


class ShardSource(Protocol):
    """A tensor that can be read in parts: a weight in a file, an array."""

    @property
    def type(self) -> TensorType:
        """Element type and shape of the whole."""
        ...

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return the part selected by one slice per axis; only that part is loaded."""
        ...


class ArraySource(Struct, frozen=True):
    """An array in memory as a `ShardSource`."""

    array: np.ndarray

    @property
    def type(self) -> TensorType:
        """The type of the array."""
        return TensorType.of(self.array)

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return a view of a part."""
        return self.array[index]
