"""Tables of converters: the function that turns each operator of a foreign graph into functionals.

The signature of a converter declares its operands and attributes, so most are as short as a table
row:

    converts = Converters("my-importer", "my_importer.supported_operators()")

    @converts("Elu")
    def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
        return F.elu(x, alpha)

Positional parameters are operands, converted by `Node.operand` to their annotation. Keyword-only
parameters are attributes, read by `Node.attribute` for their annotation; ones with a default may be
missing. A first parameter `node` gets the node.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
from msgspec import Struct

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import GptrsError, ModelError, UnsupportedError
from gptrs.functionals.elementwise import maximum, minimum
from gptrs.functionals.operands import size_scalar
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.quoting import clipped

Function = TypeVar("Function", bound=Callable[..., object])

DAMAGE: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(StopIteration, TypeError, ValueError),
)
"""Python errors that converters, and the libraries of a format, raise for damaged files."""

_TYPES: Final[Mapping[str, type]] = {"int": int, "bool": int, "float": float, "str": str}
_NOTHING: Final[Mapping[str, object]] = {}


class Node(ABC):
    """An operation of a foreign graph, as converters see it.

    Subclasses define its name in messages (`__str__`), its `attributes` as plain values by name,
    and the form of operands.
    """

    damage: ClassVar[tuple[type[Exception], ...]] = DAMAGE
    """Python errors that mean a damaged node."""

    attributes: Mapping[str, object] = _NOTHING
    """The attributes by name, as plain values."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the operator, in backticks, for messages."""

    def __contains__(self, attribute: str) -> bool:
        return attribute in self.attributes

    def operand(self, index: int, kind: str, value: object) -> object:
        """Return an operand, converted for a parameter with the annotation `kind`."""
        del index, kind
        return value

    def attribute(self, name: str, kind: str) -> Any:
        """Return an attribute of a kind: `int`, `bool`, `float`, `str`, `list[int]` and so on.

        ModelError if it is missing or of another kind.
        """
        value = self.attributes.get(name)
        if value is None:
            self.malformed(f"lacks the attribute `{name}`")
        container, is_list, element = kind.partition("[")
        wanted = _TYPES[element[:-1] if is_list else container]
        if bool(is_list) != isinstance(value, (list, tuple)):
            self.malformed(f"has an attribute `{name}` that is not of type {kind}")
        several = cast("Sequence[object]", value) if is_list else [value]
        if not all(issubclass(each, wanted) for each in set(map(type, several))):
            self.malformed(f"has an attribute `{name}` that is not of type {kind}")
        return list(several) if is_list else bool(value) if kind == "bool" else value

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        return self._read(name, "int", default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean attribute."""
        return bool(self._read(name, "bool", default))

    def number(self, name: str, default: float | None = None) -> float:
        """Return a floating-point attribute."""
        return self._read(name, "float", default)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string attribute."""
        return self._read(name, "str", default)

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return a list of integers."""
        return list(self._read(name, "list[int]", default))

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """Return a list of floats."""
        return list(self._read(name, "list[float]", default))

    def texts(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """Return a list of strings."""
        return list(self._read(name, "list[str]", default))

    def _read(self, name: str, kind: str, default: object) -> Any:
        return self.attribute(name, kind) if default is None or name in self else default

    def refuse(self, reason: str, hint: str | None = None) -> NoReturn:
        """Raise UnsupportedError: `reason` names what is not supported."""
        raise UnsupportedError(f"{self} {reason}", hint=hint)

    def malformed(self, reason: str) -> NoReturn:
        """Raise ModelError: `reason` names how the node breaks its standard."""
        raise ModelError(f"{self} {reason}")

    def failure(self, error: Exception) -> Exception:
        """Return the error to raise for one of the converter: an error of gptrs, or of `damage`."""
        if isinstance(error, GptrsError):
            error.add_note(f"while converting {self}")
            return error
        return ModelError(f"{self} cannot be converted: {clipped(str(error))}")


class _Signature(NamedTuple):
    takes_node: bool
    operands: tuple[str, ...]
    rest: str
    """The kind of further operands."""
    attributes: tuple[tuple[str, str, bool], ...]
    """Name, kind, and whether it is required."""

    def kinds(self) -> Iterator[str]:
        """Yield the kinds of operands; endless."""
        yield from self.operands
        while True:
            yield self.rest


class Converter(Struct, frozen=True, dict=True):
    """A function that converts an operator to functionals; the module describes its signature."""

    function: Callable[..., object]

    def __call__(
        self, node: Node, operands: Sequence[object], keywords: Mapping[str, object] = _NOTHING
    ) -> Any:
        """Return the results for the operands of a node; errors go through `node.failure`."""
        takes_node, _, _, attributes = signature = self.signature
        try:
            kinds = signature.kinds()
            given = [node.operand(i, next(kinds), x) for i, x in enumerate(operands)]
            named = dict(keywords)
            for name, kind, is_required in attributes:
                if name not in named and (is_required or name in node):
                    named[name] = node.attribute(name, kind)
            return self.function(*([node] if takes_node else []), *given, **named)
        except (GptrsError, *node.damage) as error:
            failure = node.failure(error)
            if failure is error:
                raise
            raise failure from error

    @cached_property
    def signature(self) -> _Signature:
        """The parameters of the function, read on its first call."""
        parameters = list(inspect.signature(self.function).parameters.values())
        takes_node = bool(parameters) and parameters[0].name == "node"
        operands: list[str] = []
        rest = "Tensor"
        attributes: list[tuple[str, str, bool]] = []
        for each in parameters[takes_node:]:
            kind = _kind_of(each.annotation)
            if each.kind is each.VAR_POSITIONAL:
                rest = kind
            elif each.kind is each.KEYWORD_ONLY:
                attributes.append((each.name, kind, each.default is each.empty))
            elif each.kind is not each.VAR_KEYWORD:
                operands.append(kind)
        return _Signature(takes_node, tuple(operands), rest, tuple(attributes))


def _kind_of(annotation: object) -> str:
    """Return an annotation as text, without modules and `| None`."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"[\w.]*\.", "", text).removesuffix(" | None")


class Converters(dict[str, Converter]):
    """Converters by the name of their operator; a decorator that registers them.

    `package` names the importer in messages, `listed_by` the call that lists its operators.
    """

    def __init__(self, package: str, listed_by: str) -> None:
        super().__init__()
        self.package = package
        self.listed_by = listed_by

    def __call__(self, *names: str) -> Callable[[Function], Function]:
        """Register the decorated function for operators by name."""

        def register(function: Function) -> Function:
            self._add({name: function for name in names})
            return function

        return register

    def each(self, rows: Mapping[str, object]) -> Callable[[Function], Function]:
        """Register the decorated function for the names of `rows`; it gets the row first."""

        def register(function: Function) -> Function:
            self._add({name: partial(function, row) for name, row in rows.items()})
            return function

        return register

    def rows(self, functions: Mapping[str, Callable[..., Tensor]]) -> None:
        """Register functions of the operands: operators that equal one functional."""
        self._add({name: partial(_called, function) for name, function in functions.items()})

    def _add(self, functions: Mapping[str, Callable[..., object]]) -> None:
        for name, function in functions.items():
            assert name not in self, f"{name} is converted twice"
            self[name] = Converter(function)

    def refuse(self, node: Node) -> NoReturn:
        """Raise the error for an operator without a converter."""
        node.refuse(
            f"is an operator that {self.package} does not convert",
            hint=f"`{self.listed_by}` lists those that it converts",
        )


def _called(function: Callable[..., Tensor], *operands: Tensor, **keywords: Any) -> Tensor:
    return function(*operands, **keywords)


# Sizes and numbers, with which graphs compute besides tensors.


def is_number(size: object, number: int | None = None) -> bool:
    """Return whether a size is a number, or that number, without asking about its symbols."""
    return isinstance(size, int) and number in (None, size)


def is_symbol(value: object) -> bool:
    """Return whether a number is a symbolic size."""
    return isinstance(value, SymbolicDim)


def scalar(value: complex, dtype: DType) -> Tensor:
    """Return a number as a constant of rank 0, rounded to `dtype`; integers wrap."""
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))


def wrapped(x: Tensor, dtype: DType) -> Tensor:
    """Return integers as another type of integers by their low bits, where `cast` saturates."""
    if dtype.bits > x.dtype.bits:
        # The sign of a negative number fills the new bits, also of unsigned ones.
        signed = dtypes.by_name(f"si{dtype.bits}")
        x = primitives.cast(x, dtype if x.dtype.kind == "unsigned" else signed)
    elif dtype.bits < x.dtype.bits:
        bits = _bitcast(x, dtypes.by_name(f"ui{x.dtype.bits}"))
        low = bits & (2**dtype.bits - 1)
        x = primitives.cast(low, dtypes.by_name(f"ui{dtype.bits}"))
    return _bitcast(x, dtype)


def _bitcast(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else primitives.bitcast(x, dtype)


def size_tensor(size: int, dtype: DType = dtypes.si64) -> Tensor:
    """Return a size as a tensor of rank 0, computed when it is known if it is symbolic."""
    return size_scalar(size, dtype)


def within_axis(index: Tensor, axis: int, size: int) -> Tensor:
    """Return indices unchanged; a program fails for one outside of `[0, size)`, and names it.

    For indices of several axes that become rows of a flat table: one outside of its own axis could
    be inside of the table.
    """
    if is_number(math.prod(index.shape), 0):
        return index
    shape, every = [1] * axis, range(index.rank)
    places = primitives.reshape(primitives.iota((size,), 0, index.dtype), [*shape, size])
    # Reading the axis checks an index, and the error has the index and the axis that were given.
    # Of many, only the ends are read.
    for end in ("max", "min"):
        extreme = primitives.reshape(primitives.reduce(index, end, every), [*shape, 1])
        read = primitives.reshape(primitives.gather(places, extreme, axis), [])
        index = minimum(index, read) if end == "max" else maximum(index, read)
    return index
