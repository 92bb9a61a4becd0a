"""Patterns over instructions, written as calls of ops on symbols.

>>> x, p = Operand("x"), Attribute[tuple[int, ...]]("p")
>>> reshape, transpose = calls(Reshape), calls(Transpose)
>>> pattern = reshape(transpose(x, permutation=p))

It matches any `reshape` of any `transpose`, whatever the attributes that it does not mention. In a
match, `match[x]` is the value that was transposed and `match[p]` the permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast, overload

from gptrs.ir.op import Op
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.rewrite.rewriter import Node, Rewriter

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Operand:
    """A symbol for any value; used twice, it stands for the same value in both places."""

    name: str


@dataclass(frozen=True, eq=False)
class Operands:
    """A symbol for all operands from its place on, any number of them: the last in its pattern."""

    name: str


@dataclass(frozen=True, eq=False)
class Attribute(Generic[T]):
    """A symbol for any attribute of type T; used twice, it stands for equal attributes."""

    name: str


@dataclass(frozen=True, eq=False)
class OpPattern:
    """Result number `index` of an instruction; attributes are symbols or required values."""

    op: type[Op]
    operands: tuple[Operand | OpPattern, ...]
    attributes: Mapping[str, object]
    rest: Operands | None = None
    """What stands for the operands after those."""
    index: int = 0

    @property
    def depth(self) -> int:
        """How many instructions the longest path of the pattern goes through."""
        inner = (part.depth for part in self.operands if isinstance(part, OpPattern))
        return 1 + max(inner, default=0)

    def result(self, index: int) -> OpPattern:
        """The same instruction, seen as its result number `index`."""
        return replace(self, index=index)


def calls(op: type[Op]) -> Callable[..., OpPattern]:
    """A function that makes patterns of `op`, called as if it computed: operands, then attributes.

    It raises ValueError when the number of operands or the name of an attribute does not fit `op`.
    """

    def call(*operands: Operand | Operands | OpPattern, **attributes: object) -> OpPattern:
        first = tuple(operand for operand in operands if not isinstance(operand, Operands))
        rest = operands[-1] if operands and isinstance(operands[-1], Operands) else None
        least = len(op.operand_names)
        if rest and not op.variadic:
            raise ValueError(f"`{op.name}` takes {least} operands, not any number of them")
        if len(first) + bool(rest) != len(operands):
            raise ValueError(f"`{op.name}`: only the last operand can stand for all that follow")
        if len(first) < least - bool(rest) or (len(first) > least and not op.variadic):
            raise ValueError(f"`{op.name}` takes {least} operands, the pattern has {len(first)}")
        for name in attributes:
            if name not in op.attribute_types:
                known = ", ".join(op.attribute_types) or "none"
                raise ValueError(f"`{op.name}` has no attribute `{name}`; it has {known}")
        return OpPattern(op, first, attributes, rest)

    return call


class Match:
    """Where a pattern was found: the value or attribute behind each symbol."""

    def __init__(self, root: Node, rewriter: Rewriter) -> None:
        self.root = root
        self._rewriter = rewriter
        self._bindings: dict[object, object] = {}

    @overload
    def __getitem__(self, symbol: Operand) -> Value: ...
    @overload
    def __getitem__(self, symbol: Operands) -> tuple[Value, ...]: ...
    @overload
    def __getitem__(self, symbol: Attribute[T]) -> T: ...
    def __getitem__(self, symbol: Operand | Operands | Attribute[T]) -> object:
        """What `symbol` stands for; KeyError if the pattern does not contain it."""
        return self._bindings[symbol]

    @property
    def type(self) -> TensorType:
        """The type of the first result of the instruction that the whole pattern matched."""
        return self.root.results[0].type

    def users(self) -> list[Node]:
        """The nodes that read a result of the instruction that the whole pattern matched."""
        return [user for result in self.root.results for user in self._rewriter.users(result)]

    def definition(self, value: Value) -> Node | None:
        """The node that defines `value`, None for a parameter of the region."""
        return self._rewriter.definition(value)

    def bind(self, symbol: object, found: object) -> bool:
        """Let `symbol` stand for `found`; False when it already stands for something else."""
        return self._bindings.setdefault(symbol, found) == found


def find_match(pattern: OpPattern, root: Node, rewriter: Rewriter) -> Match | None:
    """The match of `pattern` at `root`, None if there is none.

    The root of a pattern is a whole instruction: its `index` plays no part.
    """
    match = Match(root, rewriter)
    return match if _matches_node(pattern, root, match, rewriter) else None


def _matches_node(pattern: OpPattern, node: Node, match: Match, rewriter: Rewriter) -> bool:
    if type(node.op) is not pattern.op or not _matches_count(pattern, node, match):
        return False
    for name, wanted in pattern.attributes.items():
        found: object = getattr(node.op, name)
        if isinstance(wanted, Attribute):
            if not match.bind(cast("Attribute[object]", wanted), found):
                return False
        elif found != wanted:
            return False
    return all(
        _matches_value(part, value, match, rewriter)
        for part, value in zip(pattern.operands, node.operands, strict=False)
    )


def _matches_count(pattern: OpPattern, node: Node, match: Match) -> bool:
    first = len(pattern.operands)
    if pattern.rest is None:
        return len(node.operands) == first
    return len(node.operands) >= first and match.bind(pattern.rest, tuple(node.operands[first:]))


def _matches_value(
    pattern: Operand | OpPattern, value: Value, match: Match, rewriter: Rewriter
) -> bool:
    if isinstance(pattern, Operand):
        return match.bind(pattern, value)
    node = rewriter.definition(value)
    if node is None or node.results.index(value) != pattern.index:
        return False
    return _matches_node(pattern, node, match, rewriter)
