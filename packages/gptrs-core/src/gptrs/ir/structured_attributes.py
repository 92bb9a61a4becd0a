"""The kinds of attributes that refer to PTIR: literals, types, functions."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from gptrs.ir.attribute_kind import MAX_LENGTH, misfit
from gptrs.ir.json_literal import LITERAL_SCHEMA, literal_from_json, literal_to_json
from gptrs.ir.json_node import JsonNode
from gptrs.ir.lexer import IDENTIFIER, Token
from gptrs.ir.literal import Literal
from gptrs.ir.literal_text import parse_literal, print_literal
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import SyntaxNode, SyntaxSequence, SyntaxType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A whole literal, of the type of the first result."""

    wanted: str = "a gptrs.ir.Literal"
    written: str = 'a literal, `splat(x)` or `hex("...")`'

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        return type(value) is Literal

    def print(self, value: Literal) -> str:
        """As in AttributeKind."""
        return print_literal(value)

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        return parse_literal(node, result)

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return LITERAL_SCHEMA

    def to_json(self, value: Literal) -> object:
        """As in AttributeKind."""
        return literal_to_json(value)

    def from_json(self, node: JsonNode) -> object:
        """As in AttributeKind."""
        return literal_from_json(node)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One element, of the element type of the first result."""

    wanted: str = "a gptrs.ir.Literal of rank 0"
    written: str = "one element such as `0.0`"

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        return type(value) is Literal and value.type.rank == 0

    def print(self, value: Literal) -> str:
        """As in AttributeKind."""
        return print_literal(value)

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        return parse_literal(node, result.with_shape(()))

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return LITERAL_SCHEMA

    def to_json(self, value: Literal) -> object:
        """As in AttributeKind."""
        return literal_to_json(value)

    def from_json(self, node: JsonNode) -> object:
        """As in AttributeKind."""
        value = literal_from_json(node)
        if not self.accepts(value):
            raise node.error(f"needs a literal of rank 0, got `{value.type}`")
        return value


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """The name of a function of the same program."""

    wanted: str = "the name of a function, without `@`"
    written: str = "a function such as `@name`"

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        return type(value) is str and IDENTIFIER.fullmatch(value) is not None

    def print(self, value: str) -> str:
        """As in AttributeKind."""
        return f"@{value}"

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        if not isinstance(node, Token) or node.kind != "symbol":
            raise misfit(self, node)
        return node.text.removeprefix("@")

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return {"type": "string", "pattern": f"^@{IDENTIFIER.pattern}$"}

    def to_json(self, value: str) -> object:
        """As in AttributeKind."""
        return f"@{value}"

    def from_json(self, node: JsonNode) -> object:
        """As in AttributeKind."""
        text = node.string(self.written)
        if not text.startswith("@") or not self.accepts(text[1:]):
            raise misfit(self, node)
        return text[1:]


@dataclass(frozen=True, slots=True)
class Types:
    """A tuple of tensor types."""

    wanted: str = f"a tuple of at most {MAX_LENGTH} tensor types"
    written: str = f"a list of at most {MAX_LENGTH} types such as `[f32[2, 3]]`"

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        if type(value) is not tuple:
            return False
        items = typing.cast("tuple[object, ...]", value)
        return len(items) <= MAX_LENGTH and all(type(item) is TensorType for item in items)

    def print(self, value: tuple[TensorType, ...]) -> str:
        """As in AttributeKind."""
        return f"[{', '.join(map(str, value))}]"

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        if not isinstance(node, SyntaxSequence) or not node.is_list or len(node.items) > MAX_LENGTH:
            raise misfit(self, node)
        for item in node.items:
            if not isinstance(item, SyntaxType):
                raise item.error(f"expected a type such as `f32[2, 3]`, found {item}")
        return tuple(item.type for item in node.items if isinstance(item, SyntaxType))

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return {"type": "array", "maxItems": MAX_LENGTH, "items": {"$ref": "#/$defs/type"}}

    def to_json(self, value: tuple[TensorType, ...]) -> object:
        """As in AttributeKind."""
        return [str(type_) for type_ in value]

    def from_json(self, node: JsonNode) -> object:
        """As in AttributeKind."""
        if len(node.list()) > MAX_LENGTH:
            raise misfit(self, node)
        return tuple(item.type() for item in node.items())
