"""Kinds of op attributes: each checks a value, prints it and reads it, as text and as JSON."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod

from typing_extensions import override

from gptrs.errors import ProgramError
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import JsonNode, SyntaxNode

MAX_LENGTH = 1024
"""Longest tuple of integers: entries correspond to axes, and products of them must stay cheap."""


class AttributeKind(ABC):
    """A kind of attribute: checks a Python value, prints it, and reads it."""

    __slots__ = ()

    wanted: str
    """The Python values that are valid, phrased to follow "must be"."""
    written: str
    """The text form, phrased to follow "expected"."""

    @abstractmethod
    def accepts(self, value: object) -> bool:
        """Return whether `value` has exactly the right Python type and is in range."""

    @abstractmethod
    def print(self, value: typing.Any) -> str:
        """Return the text of an accepted value."""

    @abstractmethod
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        """Return the value of `node` in an op with that result; ParseError if not `written`."""

    @property
    @abstractmethod
    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the attribute, which may refer to the `$defs` of a program."""

    @abstractmethod
    def to_json(self, value: typing.Any) -> object:
        """Return the JSON value of an accepted value."""

    @abstractmethod
    def from_json(self, node: JsonNode) -> object:
        """Return the value of `node`; ProgramError, with its path, if it is not of this kind."""


class SameInJson(AttributeKind):
    """Mixin for kinds whose values are JSON values themselves."""

    __slots__ = ()

    @override
    def to_json(self, value: object) -> object:
        return value

    @override
    def from_json(self, node: JsonNode) -> object:
        if not self.accepts(node.value):
            raise misfit(self, node)
        return node.value


def misfit(kind: AttributeKind, node: SyntaxNode | JsonNode) -> ProgramError:
    """Return the error for a `node` that `kind` does not take."""
    return node.error(f"expected {kind.written}, found {node}")
