"""The walk over a module that captures the ops of PTIR for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import numpy as np

from gptrs.api import GptrsError, UnsupportedError, UsageError
from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.reading.module import (
    MAX_NESTING,
    MAX_OPERATIONS,
    Attribute,
    Block,
    ConstantArray,
    Operation,
    StableHlo,
    ValueType,
    shown,
)

if TYPE_CHECKING:
    pass


# The values of a module while it is converted: tensors of the program, and what is known.
#
# Known are small constants, and sizes with what is computed of them: modules of JAX with free sizes
# compute shapes as integers. Those are polynomials over the symbols of the program.


SMALL: Final = 64
"""Most elements of a constant that is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A small constant. `array` holds numbers, or objects where sizes are among them."""

    array: np.ndarray[Any, np.dtype[Any]]
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return self.array.shape

    @property
    def is_symbolic(self) -> bool:
        """Whether some element is a polynomial over symbols."""
        return self.array.dtype == object and any(
            isinstance(each, SymbolicDim) for each in self.array.flat
        )

    def integers(self) -> list[int]:
        """Return the elements in order as integers or polynomials."""
        held = self.array.reshape(-1)
        return [cast("int", x) if isinstance(x, SymbolicDim) else int(x) for x in held]


Value: TypeAlias = Tensor | Known


def known_sizes(values: Sequence[int], shape: Sequence[int], dtype: DType) -> Known | None:
    """Return integers as known, None where one of them is not in the range of `dtype`."""
    numbers = [each for each in values if not isinstance(each, SymbolicDim)]
    if any(not -(2 ** (dtype.bits - 1)) <= each < 2 ** (dtype.bits - 1) for each in numbers):
        return None
    made = np.empty(len(values), object)
    made[:] = list(values)
    return Known(made.reshape(tuple(shape)), dtype)


def as_tensor(value: Value) -> Tensor:
    """Return a value as a tensor: a constant, or sizes that are computed when it runs."""
    if isinstance(value, Tensor):
        return value
    if not value.is_symbolic:
        return primitives.constant(value.array.astype(value.dtype.numpy))
    elements = [
        primitives.reshape(size_tensor(each, value.dtype), (1,)) for each in value.integers()
    ]
    return primitives.reshape(primitives.concat(elements, 0), value.shape)


def size_tensor(size: int, dtype: DType = dtypes.si64) -> Tensor:
    """Return a size as a scalar: the sum of as many ones, if it is symbolic."""
    if not isinstance(size, SymbolicDim):
        return primitives.constant(np.asarray(size).astype(dtype.numpy))
    ones = primitives.broadcast_to(scalar(1, dtype), (size,))
    return primitives.reduce(ones, "sum", (0,))


def scalar(value: complex, dtype: DType) -> Tensor:
    """Return a number as a scalar."""
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))


def filled(value: complex | Tensor, like: Tensor) -> Tensor:
    """Return a tensor of the type of `like` with one value in each element."""
    held = value if isinstance(value, Tensor) else scalar(value, like.dtype)
    return held if like.rank == 0 else primitives.broadcast_to(held, like.shape)


def spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `x` as it is, or a scalar repeated to `shape`."""
    return x if x.shape == tuple(shape) else primitives.broadcast_to(x, tuple(shape))


# Which converter takes which operation.


Converter: TypeAlias = Callable[..., Value | Sequence[Value]]
"""`(node, *operands) -> result`, or a sequence of results."""
Folder: TypeAlias = Callable[..., Known | None]
"""The same on known values alone; None where the result is not known."""

CONVERTERS: dict[str, Converter] = {}
KNOWING: set[str] = set()
"""Names whose converters take known values as they are; all others take tensors."""
FOLDERS: dict[str, Folder] = {}
ELEMENTWISE: set[str] = set()
"""Names that compute each element by itself, so that regions of them apply to whole tensors."""


def converts(*names: str, knows: bool = False, elementwise: bool = False) -> Callable[[Any], Any]:
    """Register a converter; `knows` if it takes known values, too."""

    def register(converter: Any) -> Any:
        for name in names:
            CONVERTERS[f"stablehlo.{name}"] = converter
            if knows:
                KNOWING.add(f"stablehlo.{name}")
            if elementwise:
                ELEMENTWISE.add(f"stablehlo.{name}")
        return converter

    return register


def folds(name: str) -> Callable[[Folder], Folder]:
    """Register what computes an operation on known values."""

    def register(folder: Folder) -> Folder:
        FOLDERS[f"stablehlo.{name}"] = folder
        return folder

    return register


Wanted = TypeVar("Wanted")
Scope = dict[int, Value]
_MALFORMED = (ValueError, IndexError, KeyError, TypeError, StopIteration, OverflowError)
"""The errors of converters for attributes that MLIR's verifier should have refused."""


class NotConvertedError(UnsupportedError):
    """An operation that is not converted, or not in this form."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`{shown(name)}` {reason}")


@dataclass(frozen=True, slots=True)
class Node:
    """One operation that is converted: its attributes, and what its regions can see."""

    operation: Operation
    scope: Scope
    conversion: Conversion

    @property
    def name(self) -> str:
        """The name with its dialect."""
        return self.operation.name

    @property
    def type(self) -> ValueType:
        """The type of the first result; its dims may be free where those of the tensor are not."""
        return self.operation.types[0]

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return self.type.dtype

    def attribute(self, name: str, kind: type[Wanted], default: Wanted | None = None) -> Wanted:
        """Return an attribute; NotConvertedError if it is of another kind, or missing."""
        found: Attribute | None = self.operation.attributes.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, kind):
            raise self.error(f"needs an attribute `{name}` of another kind than {shown(found)}")
        return found

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return an attribute that is a list of integers, or a constant of them."""
        found = self.operation.attributes.get(name)
        if found is None and default is not None:
            return list(default)
        if isinstance(found, ConstantArray):
            return [int(each) for each in found.whole().reshape(-1)]
        if not isinstance(found, list):
            raise self.error(f"lacks the attribute `{name}`")
        return [int(cast("int", each)) for each in found]

    def numbers(self, name: str) -> dict[str, list[int]]:
        """Return dimension numbers: each field as a list, of one integer where it is no list."""
        found = self.operation.attributes.get(name)
        if not isinstance(found, dict):
            raise self.error(f"lacks the attribute `{name}`")
        return {
            key: [int(cast("int", x)) for x in (held if isinstance(held, list) else [held])]
            for key, held in found.items()
        }

    def error(self, reason: str) -> NotConvertedError:
        """Return the refusal of this operation."""
        return NotConvertedError(self.name, reason)

    def definition(self, operand: int) -> Operation | None:
        """Return the operation that gives an operand, None for a parameter."""
        number = self.operation.operands[operand]
        return self.conversion.module.definitions.get(number)

    def region(self, number: int, values: Sequence[Value]) -> list[Value]:
        """Convert a region for these parameters."""
        return self.conversion.block(self.operation.regions[number], values, self.scope)

    def lifted(
        self, number: int, values: Sequence[Tensor], shape: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Convert a region of scalars for tensors of `shape`, element by element."""
        return self.conversion.lifted(self.operation.regions[number], values, self.scope, shape)


class Conversion:
    """One capture of a module. `weight` gives the tensor of a large constant by its value."""

    def __init__(self, module: StableHlo, weight: Callable[[int, ConstantArray], Tensor]) -> None:
        self.module = module
        self.weight = weight
        self._count = 0
        self._depth = 0

    def run(self, inputs: Sequence[Value]) -> list[Tensor]:
        """Return the results of `main`."""
        return [as_tensor(each) for each in self.call("main", inputs)]

    def call(self, function: str, inputs: Sequence[Value]) -> list[Value]:
        """Return the results of a function, written out."""
        block = self.module.functions.get(function)
        if block is None:
            raise NotConvertedError("func.call", f"names `@{shown(function)}`, which has no body")
        return self.block(block, inputs, {})

    def block(
        self, block: Block, inputs: Sequence[Value], outer: Mapping[int, Value]
    ) -> list[Value]:
        """Return the results of a block that may read the values of `outer`."""
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
        """Return the results of one operation; NotConvertedError names what is not taken."""
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise UnsupportedError(
                f"with its calls written out, the module has more than {MAX_OPERATIONS} operations"
            )
        converter = CONVERTERS.get(operation.name)
        if converter is None:
            raise NotConvertedError(operation.name, "is not converted")
        node = Node(operation, scope, self)
        try:
            operands = [scope[each] for each in operation.operands]
            folded = self._folded(node, operands)
            if folded is not None:
                return [folded]
            given = operands if operation.name in KNOWING else [as_tensor(x) for x in operands]
            made = converter(node, *given)
        except (UnsupportedError, UsageError):
            raise
        except _MALFORMED as error:
            raise node.error(f"is malformed: {shown(error)}") from error
        except GptrsError as error:
            raise node.error(f"is not converted in this form: {error.message}") from error
        return list(made) if isinstance(made, Sequence) else [made]

    def _folded(self, node: Node, operands: Sequence[Value]) -> Known | None:
        folder = FOLDERS.get(node.name)
        known = [each for each in operands if isinstance(each, Known)]
        if folder is None or len(known) < len(operands):
            return None
        return folder(node, *known)

    def lifted(
        self,
        block: Block,
        inputs: Sequence[Tensor],
        outer: Mapping[int, Value],
        shape: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Return the results of a block of scalars, applied to each element of tensors."""
        scope: Scope = {**outer, **dict(zip(block.params, inputs, strict=True))}
        for operation in block.operations:
            if operation.name != "stablehlo.constant":
                if operation.name not in ELEMENTWISE:
                    raise NotConvertedError(operation.name, "in a region that combines elements")
                for each in operation.operands:
                    scope[each] = spread(as_tensor(scope[each]), shape)
            results = self.operation(operation, scope)
            scope.update(zip(operation.results, results, strict=True))
        return tuple(spread(as_tensor(scope[each]), shape) for each in block.results)


def require_converted(module: StableHlo) -> None:
    """Raise UnsupportedError that lists all operations of `main` that are not converted."""
    missing: dict[str, None] = {}
    seen, pending = {"main"}, ["main"]
    while pending:
        for operation in module.functions[pending.pop()].walk():
            called = operation.attributes.get("callee") or operation.attributes.get("decomposition")
            if isinstance(called, str) and called in module.functions and called not in seen:
                seen.add(called)
                pending.append(called)
            if operation.name not in CONVERTERS:
                missing[operation.name] = None
    if missing:
        names = ", ".join(f"`{shown(name)}`" for name in list(missing)[:8])
        raise UnsupportedError(f"the module has operations that are not converted: {names}")
