"""The walk over a module that captures PTIR ops for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.api import GptrsError, ModelError, UnsupportedError, UsageError, importers
from gptrs.api.importers import Converter, Converters, scalar, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim
from gptrs_backend_jax.stablehlo.reading.module import (
    MAX_NESTING,
    MAX_OPERATIONS,
    Block,
    ConstantArray,
    Operation,
    StableHlo,
    ValueType,
    shown,
)

# The values of a module during conversion: tensors of the program, and known values.
#
# Known values are small constants, and sizes with everything computed from them: JAX modules with
# free sizes compute shapes as integers, which are polynomials over the symbols of the program.


SMALL: Final = 64
"""Most elements of a known constant."""


class Known(Struct, frozen=True, eq=False):
    """A small constant. `array` holds numbers, or objects if some of them are symbolic sizes."""

    array: np.ndarray[Any, np.dtype[Any]]
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return self.array.shape

    @property
    def is_symbolic(self) -> bool:
        """Whether an element is a polynomial over symbols."""
        return self.array.dtype == object and any(
            isinstance(each, SymbolicDim) for each in self.array.flat
        )

    def integers(self) -> list[int]:
        """Return the elements in order as integers or polynomials."""
        held = self.array.reshape(-1)
        return [cast("int", x) if isinstance(x, SymbolicDim) else int(x) for x in held]


Value: TypeAlias = Tensor | Known
Sizes: TypeAlias = list[int]
"""A value that must be known, as integers and polynomials over the symbols of the program."""
Numbers: TypeAlias = dict[str, list[int]]
"""Dimension numbers: axes by field."""


def known_sizes(values: Sequence[int], shape: Sequence[int], dtype: DType) -> Known | None:
    """Return integers as a known value; None if one of them is outside of the range of `dtype`."""
    numbers = [each for each in values if not isinstance(each, SymbolicDim)]
    if any(not -(2 ** (dtype.bits - 1)) <= each < 2 ** (dtype.bits - 1) for each in numbers):
        return None
    made = np.empty(len(values), object)
    made[:] = list(values)
    return Known(made.reshape(tuple(shape)), dtype)


def as_tensor(value: Value) -> Tensor:
    """Return a value as a tensor: a constant, or sizes computed at run time."""
    if isinstance(value, Tensor):
        return value
    if not value.is_symbolic:
        return primitives.constant(value.array.astype(value.dtype.numpy))
    elements = [
        primitives.reshape(size_tensor(each, value.dtype), (1,)) for each in value.integers()
    ]
    return primitives.reshape(primitives.concat(elements, 0), value.shape)


def filled(value: complex | Tensor, like: Tensor) -> Tensor:
    """Return a tensor of the type of `like` with one value in each element."""
    held = value if isinstance(value, Tensor) else scalar(value, like.dtype)
    return held if like.rank == 0 else primitives.broadcast_to(held, like.shape)


def spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `x`, or a scalar broadcast to `shape`."""
    return x if x.shape == tuple(shape) else primitives.broadcast_to(x, tuple(shape))


# Converters by operation; dialects other than `stablehlo` are a prefix.


_TABLE: Final = ("gptrs-backend-jax", "gptrs_backend_jax.supported_operations()")
converts = Converters(*_TABLE)
"""Converters of operations. Operands annotated `Value` may be known; all others are tensors."""
elementwise = Converters(*_TABLE)
"""Elementwise operations: regions made of them apply to whole tensors."""
folds = Converters(*_TABLE)
"""Computes an operation on known values; returns None if the result is unknown."""


def converter_of(name: str) -> Converter | None:
    """Return the converter of an operation; None if there is none."""
    short = name.removeprefix("stablehlo.")
    return converts.get(short) or elementwise.get(short)


Scope = dict[int, Value]


class Node(importers.Node):
    """An operation during conversion: its attributes, and the values in scope of its regions."""

    damage = (ValueError, IndexError, KeyError, TypeError, StopIteration, OverflowError)

    def __init__(self, operation: Operation, scope: Scope, conversion: Conversion) -> None:
        self.operation = operation
        self.attributes = operation.attributes
        self.scope = scope
        self.conversion = conversion

    @override
    def __str__(self) -> str:
        return f"`{shown(self.operation.name)}`"

    @property
    def type(self) -> ValueType:
        """The type of the first result; its dims may be free where the tensor's are not."""
        return self.operation.types[0]

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return self.type.dtype

    @override
    def operand(self, index: int, kind: str, value: object) -> object:
        """Return an operand: `Sizes` become integers, `Known` and `Value` are unchanged."""
        if kind == "Sizes":
            if not isinstance(value, Known):
                self.refuse("takes sizes that are computed from data")
            return value.integers()
        return value if kind in ("Known", "Value") else as_tensor(cast("Value", value))

    @override
    def attribute(self, name: str, kind: str) -> Any:
        """Return an attribute, such as a constant, or dimension numbers by field.

        A list of integers may be a constant; a field of dimension numbers may be one integer.
        """
        found = self.attributes.get(name)
        if isinstance(found, ConstantArray):
            return found if kind == "ConstantArray" else found.whole().reshape(-1).tolist()
        if kind == "Numbers" and isinstance(found, dict):
            held = cast("dict[str, list[int] | int]", found)
            return {key: [x] if isinstance(x, int) else x for key, x in held.items()}
        if kind in ("ConstantArray", "Numbers"):
            self.malformed(f"lacks the attribute `{name}`")
        return super().attribute(name, kind)

    @override
    def failure(self, error: Exception) -> Exception:
        """Return an error that names the operation, for forms that MLIR's verifier accepts."""
        if isinstance(error, (ModelError, UnsupportedError, UsageError)):
            return error
        if isinstance(error, GptrsError):
            return UnsupportedError(f"{self} is not converted in this form: {error.message}")
        return UnsupportedError(f"{self} is malformed: {shown(error)}")

    def definition(self, operand: int) -> Operation | None:
        """Return the operation that defines an operand; None for a parameter."""
        number = self.operation.operands[operand]
        return self.conversion.module.definitions.get(number)

    def region(self, number: int, values: Sequence[Value]) -> list[Value]:
        """Convert a region for these parameters."""
        return self.conversion.block(self.operation.regions[number], values, self.scope)

    def lifted(
        self, number: int, values: Sequence[Tensor], shape: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Convert a region of scalars, elementwise for tensors of `shape`."""
        return self.conversion.lifted(self.operation.regions[number], values, self.scope, shape)


class Conversion:
    """A capture of a module. `weight` returns the tensor of a large constant by its number."""

    def __init__(self, module: StableHlo, weight: Callable[[int, ConstantArray], Tensor]) -> None:
        self.module = module
        self.weight = weight
        self._count = 0
        self._depth = 0

    def run(self, inputs: Sequence[Value]) -> list[Tensor]:
        """Return the results of `main`."""
        return [as_tensor(each) for each in self.call("main", inputs)]

    def call(self, function: str, inputs: Sequence[Value]) -> list[Value]:
        """Inline a function, and return its results."""
        block = self.module.functions.get(function)
        if block is None:
            raise UnsupportedError(f"`func.call` names `@{shown(function)}`, which has no body")
        return self.block(block, inputs, {})

    def block(
        self, block: Block, inputs: Sequence[Value], outer: Mapping[int, Value]
    ) -> list[Value]:
        """Return the results of a block, which may read the values of `outer`."""
        if len(inputs) != len(block.params):
            raise UnsupportedError(f"a block of {len(block.params)} parameters got {len(inputs)}")
        if self._depth > MAX_NESTING:
            raise UnsupportedError(f"calls and regions are nested deeper than {MAX_NESTING}")
        scope: Scope = {**outer, **dict(zip(block.params, inputs, strict=True))}
        self._depth += 1
        try:
            for operation in block.operations:
                results = self.operation(operation, scope)
                scope.update(zip(operation.results, results, strict=True))
        finally:
            self._depth -= 1
        return [scope[each] for each in block.results]

    def operation(self, operation: Operation, scope: Scope) -> list[Value]:
        """Return the results of an operation; UnsupportedError names what is not converted."""
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise UnsupportedError(
                f"with its calls inlined, the module has more than {MAX_OPERATIONS} operations"
            )
        node = Node(operation, scope, self)
        operands = [scope[each] for each in operation.operands]
        fold = folds.get(operation.name.removeprefix("stablehlo."))
        if fold is not None and all(isinstance(each, Known) for each in operands):
            folded = fold(node, operands)
            if folded is not None:
                return [folded]
        converter = converter_of(operation.name) or converts.refuse(node)
        made: Value | Sequence[Value] = converter(node, operands)
        return list(made) if isinstance(made, Sequence) else [made]

    def lifted(
        self,
        block: Block,
        inputs: Sequence[Tensor],
        outer: Mapping[int, Value],
        shape: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Return the results of a block of scalars, applied elementwise to tensors."""
        scope: Scope = {**outer, **dict(zip(block.params, inputs, strict=True))}
        for operation in block.operations:
            if operation.name != "stablehlo.constant":
                if operation.name.removeprefix("stablehlo.") not in elementwise:
                    Node(operation, scope, self).refuse("in a region that combines elements")
                for each in operation.operands:
                    scope[each] = spread(as_tensor(scope[each]), shape)
            results = self.operation(operation, scope)
            scope.update(zip(operation.results, results, strict=True))
        return tuple(spread(as_tensor(scope[each]), shape) for each in block.results)


def require_converted(module: StableHlo) -> None:
    """Raise an UnsupportedError that lists all operations of `main` without a converter."""
    missing: dict[str, None] = {}
    seen, pending = {"main"}, ["main"]
    while pending:
        for operation in module.functions[pending.pop()].walk():
            called = operation.attributes.get("callee") or operation.attributes.get("decomposition")
            if isinstance(called, str) and called in module.functions and called not in seen:
                seen.add(called)
                pending.append(called)
            if converter_of(operation.name) is None:
                missing[operation.name] = None
    if missing:
        names = ", ".join(f"`{shown(name)}`" for name in list(missing)[:8])
        raise UnsupportedError(f"the module has operations that are not converted: {names}")
