"""The kinds of attributes that refer to PTIR: literals, types, functions."""

from __future__ import annotations

import typing

from typing_extensions import override

from gptrs.ir.attribute_kind import MAX_LENGTH, AttributeKind, misfit
from gptrs.ir.json_literal import LITERAL_SCHEMA, literal_from_json, literal_to_json
from gptrs.ir.json_node import JsonNode
from gptrs.ir.lexer import IDENTIFIER, Token
from gptrs.ir.literal import Literal
from gptrs.ir.literal_text import parse_literal, print_literal
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import SyntaxNode, SyntaxSequence, SyntaxType
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Tensor(AttributeKind):
    """A whole literal, of the type of the first result."""

    wanted: str = "a gptrs.ir.Literal"
    written: str = 'a literal, `splat(x)` or `hex("...")`'

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is Literal

    @override
    def print(self, value: Literal) -> str:
        return print_literal(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        return parse_literal(node, result)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return LITERAL_SCHEMA

    @override
    def to_json(self, value: Literal) -> object:
        return literal_to_json(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        return literal_from_json(node)


@dataclass(frozen=True, slots=True)
class Scalar(AttributeKind):
    """One element, of the element type of the first result."""

    wanted: str = "a gptrs.ir.Literal of rank 0"
    written: str = "one element such as `0.0`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is Literal and value.type.rank == 0

    @override
    def print(self, value: Literal) -> str:
        return print_literal(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        return parse_literal(node, result.with_shape(()))

    @property
    @override
    def schema(self) -> dict[str, object]:
        return LITERAL_SCHEMA

    @override
    def to_json(self, value: Literal) -> object:
        return literal_to_json(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        value = literal_from_json(node)
        if not self.accepts(value):
            raise node.error(f"needs a literal of rank 0, got `{value.type}`")
        return value


@dataclass(frozen=True, slots=True)
class FunctionReference(AttributeKind):
    """The name of a function of the same program."""

    wanted: str = "the name of a function, without `@`"
    written: str = "a function such as `@name`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is str and IDENTIFIER.fullmatch(value) is not None

    @override
    def print(self, value: str) -> str:
        return f"@{value}"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, Token) or node.kind != "symbol":
            raise misfit(self, node)
        return node.text.removeprefix("@")

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^@{IDENTIFIER.pattern}$"}

    @override
    def to_json(self, value: str) -> object:
        return f"@{value}"

    @override
    def from_json(self, node: JsonNode) -> object:
        text = node.string(self.written)
        if not text.startswith("@") or not self.accepts(text[1:]):
            raise misfit(self, node)
        return text[1:]


@dataclass(frozen=True, slots=True)
class Types(AttributeKind):
    """A tuple of tensor types."""

    wanted: str = f"a tuple of at most {MAX_LENGTH} tensor types"
    written: str = f"a list of at most {MAX_LENGTH} types such as `[f32[2, 3]]`"

    @override
    def accepts(self, value: object) -> bool:
        if type(value) is not tuple:
            return False
        items = typing.cast("tuple[object, ...]", value)
        return len(items) <= MAX_LENGTH and all(type(item) is TensorType for item in items)

    @override
    def print(self, value: tuple[TensorType, ...]) -> str:
        return f"[{', '.join(map(str, value))}]"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, SyntaxSequence) or not node.is_list or len(node.items) > MAX_LENGTH:
            raise misfit(self, node)
        for item in node.items:
            if not isinstance(item, SyntaxType):
                raise item.error(f"expected a type such as `f32[2, 3]`, found {item}")
        return tuple(item.type for item in node.items if isinstance(item, SyntaxType))

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "array", "maxItems": MAX_LENGTH, "items": {"$ref": "#/$defs/type"}}

    @override
    def to_json(self, value: tuple[TensorType, ...]) -> object:
        return [str(type_) for type_ in value]

    @override
    def from_json(self, node: JsonNode) -> object:
        if len(node.list()) > MAX_LENGTH:
            raise misfit(self, node)
        return tuple(item.type() for item in node.items())
