"""What an op is: a frozen dataclass of attributes that checks operands and infers results."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from gptrs.errors import ProgramError
from gptrs.ir.attributes import AttributeKind, attribute_kind, check_attributes, same_attribute
from gptrs.ir.dtypes import Kind
from gptrs.ir.tensor_type import TensorType

Inferred = TensorType | tuple[TensorType, ...]
OpType = TypeVar("OpType", bound="type[Op]")

OPS: dict[str, type[Op]] = {}
"""Every op class by its text name, filled by the `@op` decorator."""


class Op:
    """One kind of instruction. Subclasses are decorated with `@op(name)`; fields are attributes.

    A subclass states its operands as the parameters of `infer`, one `TensorType` each (a starred
    parameter takes any number), and returns the result type, or a tuple of several. `infer` raises
    ProgramError, best made by `self.error`, for operands or attributes that PTIR does not allow.
    Its docstring is the definition of the op.
    """

    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]]
    variadic: ClassVar[bool]
    attribute_types: ClassVar[dict[str, Any]]
    attribute_kinds: ClassVar[dict[str, AttributeKind]]
    """How each attribute is checked, printed and read: what its type in `attribute_types` means."""
    data_operand: ClassVar[int] = 0
    """The operand whose element type a kernel is chosen by (`select`: the first branch)."""

    def infer(self, *operands: Any, **_: Any) -> Inferred:
        """Result type(s) for operands of these types."""
        raise NotImplementedError

    def result_types(self, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Check attributes and number of operands, infer; the result types as a tuple."""
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
        inferred = self.infer(*operands)
        return inferred if isinstance(inferred, tuple) else (inferred,)

    def error(self, reason: str, *operands: TensorType) -> ProgramError:
        """A ProgramError that reads `` `name` of TYPES REASON ``."""
        of = f" of {', '.join(map(str, operands))}" if operands else ""
        return ProgramError(f"`{self.name}`{of} {reason}")

    def require_kind(self, operand: TensorType, *kinds: Kind) -> None:
        """ProgramError unless the element type of `operand` is of one of `kinds`."""
        if operand.dtype.kind not in kinds:
            raise self.error(f"needs a {' or '.join(kinds)} element type", operand)

    def require_same_dtype(self, *operands: TensorType) -> None:
        """ProgramError unless all operands have one element type (PTIR never promotes)."""
        if len({operand.dtype for operand in operands}) > 1:
            raise self.error("needs operands of one element type; `cast` one side", *operands)

    def require_same_type(self, *operands: TensorType) -> None:
        """ProgramError unless all operands have one element type and one shape."""
        self.require_same_dtype(*operands)
        if len({operand.shape for operand in operands}) > 1:
            raise self.error("needs operands of one shape; use `broadcast_to`", *operands)

    def attributes(self) -> dict[str, Any]:
        """The attributes that differ from their default, in the order of declaration."""
        return {
            field.name: value
            for field in dataclasses.fields(typing.cast("Any", self))
            if not same_attribute(value := getattr(self, field.name), field.default)
        }


@dataclass_transform(frozen_default=True)
def op(name: str) -> Callable[[OpType], OpType]:
    """Class decorator: make the class a frozen dataclass and register it under its text name."""

    def register(cls: OpType) -> OpType:
        if name in OPS:
            raise ValueError(f"op `{name}` is already defined by {OPS[name].__qualname__}")
        decorated = dataclasses.dataclass(frozen=True)(cls)
        parameters = list(inspect.signature(decorated.infer).parameters.values())[1:]
        starred = [p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
        decorated.name = name
        decorated.variadic = bool(starred)
        decorated.operand_names = tuple(p.name for p in parameters if p not in starred)
        hints = typing.get_type_hints(decorated)
        fields = dataclasses.fields(typing.cast("Any", decorated))
        decorated.attribute_types = {field.name: hints[field.name] for field in fields}
        decorated.attribute_kinds = {
            name: attribute_kind(hint) for name, hint in decorated.attribute_types.items()
        }
        OPS[name] = decorated
        return decorated

    return register
