"""The base class of ops: frozen Structs of attributes that infer the types of results."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, dataclass_transform

from msgspec import NODEFAULT, Struct, field

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.attributes import (
    attribute_kind,
    check_attributes,
    is_function_name,
    same_attribute,
)
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.tensor_type import TensorType

Inferred = TensorType | tuple[TensorType, ...]
OpType = TypeVar("OpType", bound="type[Op]")

OPS: dict[str, type[Op]] = {}
"""Every op class by its text name, filled by the `@op` decorator."""


class Signature(Struct, frozen=True):
    """The parameter and result types of a region or function: all that an op sees of one."""

    params: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    def __str__(self) -> str:
        params, results = (", ".join(map(str, types)) for types in (self.params, self.results))
        return f"({params}) -> ({results})"


# For type checkers, which do not see that subclasses of a frozen Struct are frozen.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Op(Struct, frozen=True, eq=False):
    """One kind of instruction. Subclasses are decorated with `@op(name)`; fields are attributes.

    A subclass states its operands as the parameters of `infer`, one `TensorType` each (a starred
    parameter takes any number), and returns the result type, or a tuple of several. `infer` raises
    ProgramError, best made by `self.error`, for operands or attributes that PTIR does not allow.
    Its docstring is the definition of the op.

    An op with regions lists their names in `region_names`; one that refers to functions has
    attributes of the type `FunctionName`. Either sees the signatures, of its regions first, as
    the keyword `bodies` of `infer`.
    """

    name: ClassVar[str]
    region_names: ClassVar[tuple[str, ...]] = ()
    """The regions that an instruction with this op carries, in their order."""
    operand_names: ClassVar[tuple[str, ...]]
    variadic: ClassVar[bool]
    attribute_types: ClassVar[dict[str, Any]]
    attribute_defaults: ClassVar[dict[str, Any]]
    """The values of the attributes that may be left out."""
    function_attributes: ClassVar[tuple[str, ...]] = ()
    """The attributes of the type `FunctionName`."""
    attribute_kinds: ClassVar[dict[str, AttributeKind]]
    """How each attribute is checked, printed and read: what its type in `attribute_types` means."""
    commutative: ClassVar[bool] = False
    """Whether swapping the two operands leaves every bit of the result unchanged."""
    data_operand: ClassVar[int] = 0
    """The operand whose element type a kernel is chosen by (`select`: the first branch)."""

    @property
    def title(self) -> str:
        """The name for messages and reports."""
        return self.name

    def infer(self, *operands: Any, **bodies: Any) -> Inferred:
        """Result type(s) for operands of these types."""
        raise NotImplementedError

    def result_types(
        self, operands: Sequence[TensorType], bodies: Sequence[Signature] = ()
    ) -> tuple[TensorType, ...]:
        """Check attributes and number of operands, infer; the result types as a tuple.

        `bodies` holds the signature of each region, then of each function that `callees` names.
        """
        check_attributes(self.name, self.attribute_kinds, self)
        expected = len(self.operand_names)
        fits = len(operands) >= expected if self.variadic else len(operands) == expected
        if not fits:
            at_least = "at least " if self.variadic else ""
            listed = f" ({', '.join(self.operand_names)})" if expected else ""
            noun = "operand" if expected == 1 else "operands"
            raise ProgramError(
                f"`{self.name}` takes {at_least}{expected} {noun}{listed}, got {len(operands)}"
            )
        callees = self.callees()
        if len(bodies) != len(self.region_names) + len(callees):
            wanted = [*self.region_names, *(f"@{name}" for name in callees)]
            bracketed = f" ({', '.join(wanted)})" if wanted else ""
            raise ProgramError(
                f"`{self.name}` needs {len(self.region_names)} regions and {len(callees)} "
                f"functions{bracketed}, got {len(bodies)} in all"
            )
        takes_bodies = self.region_names or self.function_attributes
        inferred = self.infer(*operands, **({"bodies": tuple(bodies)} if takes_bodies else {}))
        return inferred if isinstance(inferred, tuple) else (inferred,)

    def callees(self) -> tuple[str, ...]:
        """Return the functions in the attributes, without `@`, in the order of the fields."""
        if not self.function_attributes:
            return ()
        names = (getattr(self, name) for name in self.function_attributes)
        return tuple(name for name in names if name is not None)

    def key_dtype(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> DType:
        """Return the dtype by which a kernel is chosen: that of the data operand, else of the
        result.
        """
        return operands[self.data_operand].dtype if operands else results[0].dtype

    def error(self, reason: str, *operands: TensorType) -> ProgramError:
        """Return a ProgramError that reads `` `name` of TYPES REASON ``."""
        of = f" of {', '.join(map(str, operands))}" if operands else ""
        return ProgramError(f"`{self.name}`{of} {reason}")

    def require_kind(self, operand: TensorType, *kinds: Kind) -> None:
        """Raise ProgramError unless the element type of `operand` is of one of `kinds`."""
        if operand.dtype.kind not in kinds:
            raise self.error(f"needs a {' or '.join(kinds)} element type", operand)

    def require_same_dtype(self, *operands: TensorType) -> None:
        """Raise ProgramError unless all operands have one element type: PTIR never promotes."""
        if len({operand.dtype for operand in operands}) > 1:
            raise self.error("needs operands of one element type; `cast` one side", *operands)

    def require_same_type(self, *operands: TensorType) -> None:
        """Raise ProgramError unless all operands have one element type and one shape."""
        self.require_same_dtype(*operands)
        if len({operand.shape for operand in operands}) > 1:
            raise self.error("needs operands of one shape; use `broadcast_to`", *operands)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that differ from their default, in the order of declaration."""
        return {
            name: value
            for name in self.attribute_types
            if not same_attribute(
                value := getattr(self, name), self.attribute_defaults.get(name, NODEFAULT)
            )
        }

    def __eq__(self, other: object) -> bool:
        """Return whether op and attributes are indistinguishable (-0.0 is not 0.0)."""
        return type(self) is type(other) and all(
            same_attribute(getattr(self, name), getattr(other, name))
            for name in self.attribute_types
        )

    def __hash__(self) -> int:
        values = (getattr(self, name) for name in self.attribute_types)
        # NaN hashes by identity, and equal ones must not.
        return hash(
            (self.name, *(repr(value) if isinstance(value, float) else value for value in values))
        )


def _field_types(cls: type[Op]) -> dict[str, Any]:
    """Return the types of the fields, which are written in the module of the class."""
    if not cls.__struct_fields__:
        return {}
    annotations: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations |= inspect.get_annotations(base)
    written = {name: annotations[name] for name in cls.__struct_fields__}
    holder = SimpleNamespace(__annotations__=written)
    return typing.get_type_hints(holder, vars(sys.modules[cls.__module__]))


def _defaults(cls: type[Op]) -> dict[str, Any]:
    """Return the default values by field; those with one are the last."""
    values = cls.__struct_defaults__
    return dict(zip(cls.__struct_fields__[-len(values) :], values, strict=True)) if values else {}


def op(name: str) -> Callable[[OpType], OpType]:
    """Class decorator: register the class under its text name."""

    def register(cls: OpType) -> OpType:
        if name in OPS:
            raise ValueError(f"op `{name}` is already defined by {OPS[name].__qualname__}")
        # All ops are registered when a process starts, so slow work is avoided:
        # `inspect.signature`, and hints other than those of attributes.
        infer = cls.infer.__code__
        cls.name = name
        cls.variadic = bool(infer.co_flags & inspect.CO_VARARGS)
        cls.operand_names = infer.co_varnames[1 : infer.co_argcount]
        cls.attribute_types = _field_types(cls)
        cls.attribute_defaults = _defaults(cls)
        cls.attribute_kinds = {
            name: attribute_kind(hint) for name, hint in cls.attribute_types.items()
        }
        cls.function_attributes = tuple(
            name for name, hint in cls.attribute_types.items() if is_function_name(hint)
        )
        OPS[name] = cls
        return cls

    return register
