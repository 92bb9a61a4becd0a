"""The kind of attribute that holds a Dictionary: names with values of the plain kinds."""

from __future__ import annotations

import typing

from typing_extensions import override

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import MAX_LENGTH, AttributeKind, misfit
from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.json_node import JsonNode
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.plain_attributes import INTEGER, ElementType, Flag, Float, Integers, Text
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import SyntaxNames, SyntaxNode
from gptrs.quick_dataclass import dataclass

_TAGGED: dict[str, AttributeKind] = {"float": Float(), "dtype": ElementType()}
"""The kinds that JSON would mix up with others: a float with an integer, a dtype with a string."""
_BARE: dict[type, AttributeKind] = {
    bool: Flag(),
    int: INTEGER,
    str: Text(),
    list: Integers(),
}
"""The others, by the Python type of their JSON value."""
_PLAIN_KINDS = (Flag(), INTEGER, Float(), Text(), ElementType(), Integers())


@dataclass(frozen=True, slots=True)
class Entries(AttributeKind):
    """A Dictionary: names with values of the plain kinds."""

    wanted: str = "a gptrs.ir.Dictionary of distinct identifiers in order, with plain values"
    written: str = 'names and values in braces such as `{k = 1, name = "x"}`'

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
        """A float or a dtype is `{"float": 1.0}`, `{"dtype": "f32"}`."""
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
    tag = next((tag for tag, tagged in _TAGGED.items() if tagged == kind), None)
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
