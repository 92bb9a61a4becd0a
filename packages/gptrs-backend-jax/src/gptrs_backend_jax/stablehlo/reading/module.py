"""StableHLO modules as plain data: functions, blocks and operations, without MLIR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType, dtypes

MAX_OPERATIONS: Final = 200_000
"""Most operations of a module, and most that are converted after inlining."""
MAX_NAME: Final = 200
"""Most characters of the name of an input or output."""
MAX_NESTING: Final = 32
"""Deepest nesting of regions and calls."""

ELEMENT_TYPES: Final[Mapping[str, DType]] = {
    "i1": dtypes.i1,
    "i4": dtypes.si4, "ui4": dtypes.ui4,
    "i8": dtypes.si8, "ui8": dtypes.ui8,
    "i16": dtypes.si16, "ui16": dtypes.ui16,
    "i32": dtypes.si32, "ui32": dtypes.ui32,
    "i64": dtypes.si64, "ui64": dtypes.ui64,
    "f8E4M3FN": dtypes.f8e4m3, "f8E5M2": dtypes.f8e5m2,
    "bf16": dtypes.bf16, "f16": dtypes.f16, "f32": dtypes.f32, "f64": dtypes.f64,
    "complex<f32>": dtypes.cf32, "complex<f64>": dtypes.cf64,
}  # fmt: skip
"""The element types of MLIR that PTIR has."""


class ValueType(Struct, frozen=True):
    """The type of a value: the element type in MLIR's spelling, and the dims (None: free).

    Values other than tensors (tokens, tuples) have `shape` None, and their whole type as `element`.
    """

    element: str
    shape: tuple[int | None, ...] | None

    @property
    def dtype(self) -> DType:
        """The element type; UnsupportedError if PTIR has none."""
        found = ELEMENT_TYPES.get(self.element)
        if self.shape is None or found is None:
            raise UnsupportedError(f"the type `{shown(self)}` has no counterpart in PTIR")
        return found

    def __str__(self) -> str:
        if self.shape is None:
            return self.element
        dims = "".join(f"{'?' if dim is None else dim}x" for dim in self.shape)
        return f"tensor<{dims}{self.element}>"


class ConstantArray(Struct, frozen=True, eq=False):
    """The elements of a constant; `array` has rank 0 if they are all equal."""

    type: ValueType
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return tuple(dim or 0 for dim in self.type.shape or ())

    def whole(self) -> np.ndarray:
        """Return all elements."""
        return np.broadcast_to(self.array, self.shape)


Attribute: TypeAlias = (
    "bool | int | float | str | list[Attribute] | dict[str, Attribute] | ConstantArray"
)


class Operation(Struct, frozen=True, eq=False):
    """An operation; values are numbers that are unique in the module."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[ValueType, ...]
    """Types of the results."""
    attributes: Mapping[str, Attribute]
    regions: tuple[Block, ...] = ()


class Block(Struct, frozen=True, eq=False):
    """Operations with parameters and results; they may read values of enclosing blocks."""

    params: tuple[int, ...]
    types: tuple[ValueType, ...]
    operations: tuple[Operation, ...]
    results: tuple[int, ...]

    def walk(self) -> Iterator[Operation]:
        """Yield each operation, before those of its regions."""
        pending = list(reversed(self.operations))
        while pending:
            operation = pending.pop()
            yield operation
            for region in reversed(operation.regions):
                pending.extend(reversed(region.operations))


class StableHlo(Struct, frozen=True, eq=False):
    """A module: its functions by name, and the names of the inputs and outputs of `main`.

    `sizes` has names of free dims of inputs, by (input, axis), as far as they are known.
    """

    functions: Mapping[str, Block]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    definitions: dict[int, Operation] = field(default_factory=dict[int, Operation])
    """The operation that defines each value; filled here."""

    def __post_init__(self) -> None:
        for function in self.functions.values():
            for operation in function.walk():
                for result in operation.results:
                    self.definitions[result] = operation

    @property
    def main(self) -> Block:
        """The function that runs."""
        return self.functions["main"]


def is_name(text: str) -> bool:
    """Return whether a text may be the name of an input or output: short, without controls."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def shown(text: object) -> str:
    """Return a text from a file, escaped and shortened for messages."""
    return ascii(str(text))[1:-1][:80]
