"""The closed set of types an op attribute may have, and the kind that each stands for."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import NewType

from gptrs.errors import ProgramError
from gptrs.ir import choice_attributes as choice
from gptrs.ir import plain_attributes as plain
from gptrs.ir import structured_attributes as structured
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.dictionary_attribute import Entries
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal, Scalar
from gptrs.ir.tensor_type import TensorType

FunctionName = NewType("FunctionName", str)
FunctionName.__doc__ = (
    "A function of the same program, without `@`: the type of an attribute that refers to one."
)

_SHOWN = 60
_KINDS: tuple[tuple[object, AttributeKind], ...] = (
    (bool, plain.Flag()),
    (int, plain.INTEGER),
    (float, plain.Float()),
    (str, plain.Text()),
    (DType, plain.ElementType()),
    (tuple[int, ...], plain.Integers()),
    (tuple[TensorType, ...], structured.Types()),
    (Literal, structured.Tensor()),
    (Scalar, structured.Scalar()),
    (FunctionName, structured.FunctionReference()),
    (Dictionary, Entries()),
)


def attribute_kind(hint: object) -> AttributeKind:
    """Return the kind that a field annotated with `hint` has; TypeError outside the closed set.

    The set: bool, int, float, str, `typing.Literal["a", ...]`, DType, `tuple[int, ...]`,
    `tuple[TensorType, ...]`, Literal, Scalar, FunctionName, Dictionary, and each of these `| None`.
    """
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return choice.Enumerated(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        if len(members) == 1:
            return choice.Optional(attribute_kind(members[0]))
    for known, kind in _KINDS:
        if hint == known:
            return kind
    raise TypeError(f"an op attribute cannot have the type {hint}")


def check_attributes(op_name: str, kinds: Mapping[str, AttributeKind], op: object) -> None:
    """Raise ProgramError for the first attribute of `op` that its kind does not accept."""
    for name, kind in kinds.items():
        value: object = getattr(op, name)
        if not kind.accepts(value):
            got = value if isinstance(value, str) else repr(value)
            got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}..."
            raise ProgramError(f"`{op_name}` attribute `{name}` must be {kind.wanted}, got `{got}`")


def same_attribute(a: object, b: object) -> bool:
    """Return whether two attribute values are indistinguishable: 1 is not True, -0.0 is not 0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)
    return type(a) is type(b) and a == b


def is_function_name(hint: object) -> bool:
    """Return whether a field annotated with `hint` refers to a function."""
    return hint is FunctionName or FunctionName in typing.get_args(hint)
