"""The base class of ops: frozen dataclasses of attributes that infer the types of results."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, dataclass_transform

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
from gptrs.quick_dataclass import dataclass

Inferred = TensorType | tuple[TensorType, ...]
OpType = TypeVar("OpType", bound="type[Op]")

OPS: dict[str, type[Op]] = {}
"""Every op class by its text name, filled by the `@op` decorator."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameter and result types of a region or function, which is all an op sees of it."""

    params: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    def __str__(self) -> str:
        params, results = (", ".join(map(str, types)) for types in (self.params, self.results))
        return f"({params}) -> ({results})"


class _Immutable:
    """Base of `Op`: the frozen dataclass protects its fields, this class all other names."""

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass(frozen=True, eq=False)
class Op(_Immutable):
    """One kind of instruction. Subclasses are decorated with `@op(name)`; fields are attributes.

    A subclass states its operands as the parameters of `infer`, one `TensorType` each (a starred
    parameter takes any number), and returns the result type, or a tuple of several. `infer` raises
    ProgramError, best made by `self.error`, for operands or attributes that PTIR does not allow.
    Its docstring is the definition of the op.

    An op with regions lists their names in `region_names`; an op that refers to functions has
    attributes of type `FunctionName`. `infer` gets their signatures, regions first, as the keyword
    `bodies`.
    """

    name: ClassVar[str]
    region_names: ClassVar[tuple[str, ...]] = ()
    """The names of the regions of an instruction with this op, in order."""
    operand_names: ClassVar[tuple[str, ...]]
    variadic: ClassVar[bool]
    attribute_types: ClassVar[dict[str, Any]]
    function_attributes: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes of type `FunctionName`."""
    attribute_kinds: ClassVar[dict[str, AttributeKind]]
    """The kind of each attribute, which checks, prints and reads it."""
    commutative: ClassVar[bool] = False
    """Whether swapping the two operands leaves every bit of the result unchanged."""
    data_operand: ClassVar[int] = 0
    """The operand whose element type a kernel is chosen by (`select`: the first branch)."""

    @property
    def title(self) -> str:
        """The name for messages and reports."""
        return self.name

    def infer(self, *operands: Any, **bodies: Any) -> Inferred:
        """Return the result type, or a tuple of several, for operands of these types."""
        raise NotImplementedError

    def result_types(
        self, operands: Sequence[TensorType], bodies: Sequence[Signature] = ()
    ) -> tuple[TensorType, ...]:
        """Check attributes and operand count; return the inferred result types as a tuple.

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
            field.name: value
            for field in dataclasses.fields(typing.cast("Any", self))
            if not same_attribute(value := getattr(self, field.name), field.default)
        }

    def __eq__(self, other: object) -> bool:
        """Return whether op and attributes are indistinguishable (-0.0 is not 0.0)."""
        return type(self) is type(other) and all(
            same_attribute(getattr(self, name), getattr(other, name))
            for name in self.attribute_types
        )

    def __hash__(self) -> int:
        values = (getattr(self, name) for name in self.attribute_types)
        # Python hashes NaN by identity, but equal ops must have equal hashes.
        return hash(
            (self.name, *(repr(value) if isinstance(value, float) else value for value in values))
        )


def _field_types(cls: type[Op]) -> dict[str, Any]:
    """Return the types of the fields, evaluated in the module of the class."""
    written = {field.name: field.type for field in dataclasses.fields(cls)}
    holder = SimpleNamespace(__annotations__=written)
    return typing.get_type_hints(holder, vars(sys.modules[cls.__module__])) if written else {}


@dataclass_transform(frozen_default=True)
def op(name: str) -> Callable[[OpType], OpType]:
    """Class decorator: make the class a frozen dataclass and register it under its text name."""

    def register(cls: OpType) -> OpType:
        if name in OPS:
            raise ValueError(f"op `{name}` is already defined by {OPS[name].__qualname__}")
        # Every process registers all ops when it starts, so this avoids slow work: generated
        # methods for ops without attributes (`Op` has them), `inspect.signature`, and hints of
        # anything but attributes.
        has_attributes = bool(inspect.get_annotations(cls))
        decorated = dataclass(frozen=True, eq=False)(cls) if has_attributes else cls
        infer = decorated.infer.__code__
        decorated.name = name
        decorated.variadic = bool(infer.co_flags & inspect.CO_VARARGS)
        decorated.operand_names = infer.co_varnames[1 : infer.co_argcount]
        decorated.attribute_types = _field_types(decorated)
        decorated.attribute_kinds = {
            name: attribute_kind(hint) for name, hint in decorated.attribute_types.items()
        }
        decorated.function_attributes = tuple(
            name for name, hint in decorated.attribute_types.items() if is_function_name(hint)
        )
        OPS[name] = decorated
        return decorated

    return register
