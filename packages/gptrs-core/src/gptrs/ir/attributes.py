"""The closed set of types an op attribute may have, and the kind for each."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import NewType

from msgspec import Struct
from typing_extensions import override

from gptrs.errors import ProgramError
from gptrs.ir import plain_attributes as plain
from gptrs.ir import plain_attributes as structured
from gptrs.ir.attribute_kind import MAX_LENGTH, AttributeKind, SameInJson, misfit
from gptrs.ir.dtypes import DType
from gptrs.ir.lexer import IDENTIFIER, Token
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.plain_attributes import INTEGER, ElementType, Flag, Float, Integers, Text
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import JsonNode, SyntaxNames, SyntaxNode

# The kinds of attributes that choose: one of several words, or a value or nothing.


class Enumerated(SameInJson):
    """One of a fixed set of words."""

    __slots__ = ("wanted", "words", "written")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.wanted = self.written = f"one of {', '.join(words)}"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is str and value in self.words

    @override
    def print(self, value: str) -> str:
        return value

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, Token) or node.text not in self.words:
            raise misfit(self, node)
        return node.text

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"enum": list(self.words)}


class Optional(AttributeKind):
    """A value of another kind, or None."""

    __slots__ = ("inner", "wanted", "written")

    def __init__(self, inner: AttributeKind) -> None:
        self.inner = inner
        self.wanted = f"{inner.wanted}, or None"
        self.written = f"{inner.written}, or `none`"

    @override
    def accepts(self, value: object) -> bool:
        return value is None or self.inner.accepts(value)

    @override
    def print(self, value: object) -> str:
        return "none" if value is None else self.inner.print(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if isinstance(node, Token) and node.text == "none":
            return None
        return self.inner.parse(node, result)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"anyOf": [self.inner.schema, {"type": "null"}]}

    @override
    def to_json(self, value: object) -> object:
        return None if value is None else self.inner.to_json(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        return None if node.value is None else self.inner.from_json(node)


# Free-form attributes of composites and custom calls: plain values, compared exactly.


DictionaryValue = bool | int | float | str | DType | tuple[int, ...]
"""The types of attributes that need no context to be read."""


class Dictionary(Struct, frozen=True, eq=False):
    """Names and values in the order of the names; `{k = 1, name = "x"}` in text.

    >>> Dictionary.of(k=1, name="x")["k"]
    1
    """

    items: tuple[tuple[str, DictionaryValue], ...] = ()

    @classmethod
    def of(
        cls, mapping: Mapping[str, DictionaryValue] | None = None, /, **values: DictionaryValue
    ) -> Dictionary:
        """Return the dictionary of these names and values."""
        return cls(tuple(sorted({**(mapping or {}), **values}.items(), key=lambda item: item[0])))

    def __getitem__(self, name: str) -> DictionaryValue:
        for key, value in self.items:
            if key == name:
                return value
        listed = ", ".join(self) or "none"
        raise ProgramError(f"there is no attribute `{name}`; there are {listed}")

    def get(self, name: str) -> DictionaryValue | None:
        """Return the value of a name, None without one: attributes that are None are left out."""
        return next((value for key, value in self.items if key == name), None)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same names with indistinguishable values: 1 is not True."""
        return isinstance(other, Dictionary) and self._exact() == other._exact()

    def __hash__(self) -> int:
        return hash(self._exact())

    def _exact(self) -> tuple[object, ...]:
        """Return values with their types; floats as text, so that -0.0 differs from 0.0 and NaN
        equals NaN."""
        return tuple(
            (name, type(value), repr(value) if isinstance(value, float) else value)
            for name, value in self.items
        )


# The kind of attribute that holds a Dictionary: names with values of the plain kinds.


_TAGGED: dict[str, AttributeKind] = {"float": Float(), "dtype": ElementType()}
"""Kinds that JSON alone would confuse: a float with an integer, a dtype with a string."""
_BARE: dict[type, AttributeKind] = {
    bool: Flag(),
    int: INTEGER,
    str: Text(),
    list: Integers(),
}
"""The other kinds, by the Python type of their JSON value."""
_PLAIN_KINDS = (Flag(), INTEGER, Float(), Text(), ElementType(), Integers())


class Entries(AttributeKind):
    """A Dictionary: names with values of the plain kinds."""

    __slots__ = ()

    wanted = "a gptrs.ir.Dictionary of distinct identifiers in order, with plain values"
    written = 'names and values in braces such as `{k = 1, name = "x"}`'

    @override
    def accepts(self, value: object) -> bool:
        if type(value) is not Dictionary or len(value) > MAX_LENGTH:
            return False
        names = list(value)
        return names == sorted(set(names)) and all(
            IDENTIFIER.fullmatch(name) and _plain_kind(entry) for name, entry in value.items
        )

    @override
    def print(self, value: Dictionary) -> str:
        texts = [f"{name} = {_required_kind(entry).print(entry)}" for name, entry in value.items]
        return f"{{{', '.join(texts)}}}"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, SyntaxNames):
            raise misfit(self, node)
        return Dictionary.of(
            {name: _parse_plain(entry, result) for name, (_, entry) in node.items.items()}
        )

    @property
    @override
    def schema(self) -> dict[str, object]:
        tagged = [
            {
                "type": "object",
                "properties": {tag: kind.schema},
                "required": [tag],
                "additionalProperties": False,
            }
            for tag, kind in _TAGGED.items()
        ]
        return {
            "type": "object",
            "maxProperties": MAX_LENGTH,
            "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"},
            "additionalProperties": {
                "anyOf": [*(kind.schema for kind in _BARE.values()), *tagged],
            },
        }

    @override
    def to_json(self, value: Dictionary) -> object:
        """Return the JSON object; a float or dtype is wrapped: `{"float": 1.0}`, `{"dtype":
        "f32"}`."""
        return {name: _to_json(entry) for name, entry in value.items}

    @override
    def from_json(self, node: JsonNode) -> object:
        value = Dictionary.of({name: _from_json(item) for name, item in node.entries().items()})
        if not self.accepts(value):
            raise node.error(f"needs at most {MAX_LENGTH} names, each an identifier")
        return value


def _plain_kind(value: object) -> AttributeKind | None:
    return next((kind for kind in _PLAIN_KINDS if kind.accepts(value)), None)


def _required_kind(value: object) -> AttributeKind:
    kind = _plain_kind(value)
    if kind is None:
        raise ProgramError(f"a dictionary cannot hold `{value!r}`")
    return kind


def _parse_plain(node: SyntaxNode, result: TensorType) -> DictionaryValue:
    for kind in _PLAIN_KINDS:
        try:
            return typing.cast("DictionaryValue", kind.parse(node, result))
        except ProgramError:
            continue
    raise node.error(f"expected a flag, number, string, dtype or list of integers, found {node}")


def _to_json(value: DictionaryValue) -> object:
    kind = _required_kind(value)
    written = kind.to_json(value)
    tag = next((tag for tag, tagged in _TAGGED.items() if type(tagged) is type(kind)), None)
    return written if tag is None else {tag: written}


def _from_json(node: JsonNode) -> DictionaryValue:
    if isinstance(node.value, dict):
        tagged = node.entries()
        if len(tagged) == 1 and (tag := next(iter(tagged))) in _TAGGED:
            return typing.cast("DictionaryValue", _TAGGED[tag].from_json(tagged[tag]))
    elif type(node.value) in _BARE:
        return typing.cast("DictionaryValue", _BARE[type(node.value)].from_json(node))
    wanted = (
        'a flag, an integer, a string, a list of integers, `{"float": ...}` or `{"dtype": ...}`'
    )
    raise node.expected(wanted)


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
        return Enumerated(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        if len(members) == 1:
            return Optional(attribute_kind(members[0]))
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
