"""The closed set of types an op attribute may have: how each is checked, printed and read."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.lexer import Token
from gptrs.ir.literal import Literal
from gptrs.ir.literal_text import parse_literal, print_literal
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import Node, Sequence

_INTEGER_LIMIT = 2**63
_MAX_LENGTH = 1024
"""Longest tuple: the entries are one an axis, and products of them must stay cheap."""
_SHOWN = 60


class AttributeKind(Protocol):
    """What one attribute takes: checks a Python value, prints it, and reads it from text."""

    @property
    def wanted(self) -> str:
        """What a Python value must be, after the words "must be"."""
        ...

    @property
    def written(self) -> str:
        """What must be written in text, after the word "expected"."""
        ...

    def accepts(self, value: object) -> bool:
        """Whether `value` has exactly the right Python type and is in range."""
        ...

    def print(self, value: typing.Any) -> str:
        """The text of an accepted value."""
        ...

    def parse(self, node: Node, result: TensorType) -> object:
        """What `node` stands for in an op with that result; ParseError if it is not `written`."""
        ...


def attribute_kind(hint: object) -> AttributeKind:
    """The kind that a field annotated with `hint` has; TypeError outside the closed set.

    The set: bool, int, float, `Literal["a", ...]`, DType, `tuple[int, ...]`, Literal, and each of
    these `| None`.
    """
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return _Enumerated(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        if len(members) == 1:
            return _Optional(attribute_kind(members[0]))
    for plain, kind in _PLAIN:
        if hint == plain:
            return kind
    raise TypeError(f"an op attribute cannot have the type {hint}")


def check_attributes(op_name: str, kinds: Mapping[str, AttributeKind], op: object) -> None:
    """ProgramError for the first attribute of `op` that its kind does not accept."""
    for name, kind in kinds.items():
        value: object = getattr(op, name)
        if not kind.accepts(value):
            got = value if isinstance(value, str) else repr(value)
            got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}..."
            raise ProgramError(f"`{op_name}` attribute `{name}` must be {kind.wanted}, got `{got}`")


def same_attribute(a: object, b: object) -> bool:
    """Whether two attribute values are indistinguishable: 1 is not True, -0.0 is not 0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)
    return type(a) is type(b) and a == b


def _misfit(kind: AttributeKind, node: Node) -> ProgramError:
    return node.error(f"expected {kind.written}, found {node}")


@dataclass(frozen=True, slots=True)
class _Flag:
    wanted: str = "true or false"
    written: str = "`true` or `false`"

    def accepts(self, value: object) -> bool:
        return type(value) is bool

    def print(self, value: bool) -> str:
        return "true" if value else "false"

    def parse(self, node: Node, result: TensorType) -> object:
        if not isinstance(node, Token) or node.text not in ("true", "false"):
            raise _misfit(self, node)
        return node.text == "true"


@dataclass(frozen=True, slots=True)
class _Integer:
    wanted: str = "an integer of 64 bits"
    written: str = "an integer of 64 bits"

    def accepts(self, value: object) -> bool:
        return type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT

    def print(self, value: int) -> str:
        return str(value)

    def parse(self, node: Node, result: TensorType) -> object:
        # 20 characters hold every integer in range; int() itself refuses thousands of digits.
        if (
            not isinstance(node, Token)
            or not node.text.removeprefix("-").isdigit()
            or len(node.text) > 20
            or not self.accepts(value := int(node.text))
        ):
            raise _misfit(self, node)
        return value


@dataclass(frozen=True, slots=True)
class _Float:
    wanted: str = "a float"
    written: str = "a number, `inf`, `-inf` or `nan`"

    def accepts(self, value: object) -> bool:
        return type(value) is float

    def print(self, value: float) -> str:
        return repr(value)

    def parse(self, node: Node, result: TensorType) -> object:
        if not isinstance(node, Token) or node.kind != "number":
            raise _misfit(self, node)
        return float(node.text)


@dataclass(frozen=True, slots=True)
class _ElementType:
    wanted: str = "a dtype"
    written: str = f"one of the dtypes {', '.join(str(dtype) for dtype in dtypes.ALL)}"

    def accepts(self, value: object) -> bool:
        return any(value is dtype for dtype in dtypes.ALL)

    def print(self, value: DType) -> str:
        return value.name

    def parse(self, node: Node, result: TensorType) -> object:
        for dtype in dtypes.ALL:
            if isinstance(node, Token) and node.text == dtype.name:
                return dtype
        raise _misfit(self, node)


@dataclass(frozen=True, slots=True)
class _Integers:
    wanted: str = f"a tuple of at most {_MAX_LENGTH} integers of 64 bits"
    written: str = f"a list of at most {_MAX_LENGTH} integers such as `[0, 1]`"

    def accepts(self, value: object) -> bool:
        if type(value) is not tuple:
            return False
        items = typing.cast("tuple[object, ...]", value)
        return len(items) <= _MAX_LENGTH and all(map(_INTEGER.accepts, items))

    def print(self, value: tuple[int, ...]) -> str:
        return f"[{', '.join(map(str, value))}]"

    def parse(self, node: Node, result: TensorType) -> object:
        if not isinstance(node, Sequence) or not node.is_list or len(node.items) > _MAX_LENGTH:
            raise _misfit(self, node)
        return tuple(_INTEGER.parse(item, result) for item in node.items)


@dataclass(frozen=True, slots=True)
class _Tensor:
    wanted: str = "a gptrs.ir.Literal"
    written: str = 'a literal, `splat(x)` or `hex("...")`'

    def accepts(self, value: object) -> bool:
        return type(value) is Literal

    def print(self, value: Literal) -> str:
        return print_literal(value)

    def parse(self, node: Node, result: TensorType) -> object:
        return parse_literal(node, result)


@dataclass(frozen=True, slots=True)
class _Enumerated:
    words: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return f"one of {', '.join(self.words)}"

    @property
    def written(self) -> str:
        return self.wanted

    def accepts(self, value: object) -> bool:
        return type(value) is str and value in self.words

    def print(self, value: str) -> str:
        return value

    def parse(self, node: Node, result: TensorType) -> object:
        if not isinstance(node, Token) or node.text not in self.words:
            raise _misfit(self, node)
        return node.text


@dataclass(frozen=True, slots=True)
class _Optional:
    inner: AttributeKind

    @property
    def wanted(self) -> str:
        return f"{self.inner.wanted}, or None"

    @property
    def written(self) -> str:
        return f"{self.inner.written}, or `none`"

    def accepts(self, value: object) -> bool:
        return value is None or self.inner.accepts(value)

    def print(self, value: object) -> str:
        return "none" if value is None else self.inner.print(value)

    def parse(self, node: Node, result: TensorType) -> object:
        if isinstance(node, Token) and node.text == "none":
            return None
        return self.inner.parse(node, result)


_INTEGER = _Integer()
_PLAIN: tuple[tuple[object, AttributeKind], ...] = (
    (bool, _Flag()),
    (int, _INTEGER),
    (float, _Float()),
    (DType, _ElementType()),
    (tuple[int, ...], _Integers()),
    (Literal, _Tensor()),
)
