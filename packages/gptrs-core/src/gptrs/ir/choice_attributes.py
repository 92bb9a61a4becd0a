"""The kinds of attributes that choose: one of some words, or another kind or nothing."""

from __future__ import annotations

from dataclasses import field

from typing_extensions import override

from gptrs.ir.attribute_kind import AttributeKind, SameInJson, misfit
from gptrs.ir.json_node import JsonNode
from gptrs.ir.lexer import Token
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import SyntaxNode
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Enumerated(SameInJson):
    """One of some words."""

    words: tuple[str, ...]
    wanted: str = field(init=False)
    written: str = field(init=False)

    def __post_init__(self) -> None:
        for name in ("wanted", "written"):
            object.__setattr__(self, name, f"one of {', '.join(self.words)}")

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


@dataclass(frozen=True, slots=True)
class Optional(AttributeKind):
    """A value of another kind, or None."""

    inner: AttributeKind
    wanted: str = field(init=False)
    written: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", f"{self.inner.wanted}, or None")
        object.__setattr__(self, "written", f"{self.inner.written}, or `none`")

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
