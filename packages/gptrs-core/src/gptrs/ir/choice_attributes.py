"""The kinds of attributes that choose: one of some words, or another kind or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from gptrs.ir.attribute_kind import AttributeKind, SameInJson, misfit
from gptrs.ir.json_node import JsonNode
from gptrs.ir.lexer import Token
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import SyntaxNode


@dataclass(frozen=True, slots=True)
class Enumerated(SameInJson):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def wanted(self) -> str:
        """As in AttributeKind."""
        return f"one of {', '.join(self.words)}"

    @property
    def written(self) -> str:
        """As in AttributeKind."""
        return self.wanted

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        return type(value) is str and value in self.words

    def print(self, value: str) -> str:
        """As in AttributeKind."""
        return value

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        if not isinstance(node, Token) or node.text not in self.words:
            raise misfit(self, node)
        return node.text

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Optional:
    """What another kind takes, or None."""

    inner: AttributeKind

    @property
    def wanted(self) -> str:
        """As in AttributeKind."""
        return f"{self.inner.wanted}, or None"

    @property
    def written(self) -> str:
        """As in AttributeKind."""
        return f"{self.inner.written}, or `none`"

    def accepts(self, value: object) -> bool:
        """As in AttributeKind."""
        return value is None or self.inner.accepts(value)

    def print(self, value: object) -> str:
        """As in AttributeKind."""
        return "none" if value is None else self.inner.print(value)

    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """As in AttributeKind."""
        if isinstance(node, Token) and node.text == "none":
            return None
        return self.inner.parse(node, result)

    @property
    def schema(self) -> dict[str, object]:
        """As in AttributeKind."""
        return {"anyOf": [self.inner.schema, {"type": "null"}]}

    def to_json(self, value: object) -> object:
        """As in AttributeKind."""
        return None if value is None else self.inner.to_json(value)

    def from_json(self, node: JsonNode) -> object:
        """As in AttributeKind."""
        return None if node.value is None else self.inner.from_json(node)
