"""Patterns over instructions, written as calls of ops on symbols.

>>> x, p = Operand("x"), Attribute[tuple[int, ...]]("p")
>>> reshape, transpose = calls(Reshape), calls(Transpose)
>>> pattern = reshape(transpose(x, permutation=p))

It matches any `reshape` of any `transpose`, with any values of unmentioned attributes.
In a match `m`, `m[x]` is the value that was transposed, `m[p]` the permutation, and `m[reshape]`
the `Reshape` with all its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter

T = TypeVar("T")
OpT = TypeVar("OpT", bound=Op)
OpT_co = TypeVar("OpT_co", bound=Op, covariant=True)


class Operand(Struct, frozen=True, eq=False):
    """A symbol for any value; if used twice, both must be the same value."""

    name: str


class Operands(Struct, frozen=True, eq=False):
    """A symbol for any number of remaining operands; must be last in its pattern."""

    name: str


class Attribute(Struct, Generic[T], frozen=True, eq=False):
    """A symbol for any attribute of type T; if used twice, both must be equal."""

    name: str


class OpPattern(Struct, frozen=True, eq=False):
    """Result number `index` of an instruction; attributes are symbols or required values."""

    symbol: OpSymbol[Op]
    operands: tuple[Operand | OpPattern, ...]
    attributes: Mapping[str, object]
    rest: Operands | None = None
    """The symbol for the remaining operands."""
    index: int = 0

    @property
    def depth(self) -> int:
        """The number of instructions on the longest path of the pattern."""
        inner = (part.depth for part in self.operands if isinstance(part, OpPattern))
        return 1 + max(inner, default=0)

    def result(self, index: int) -> OpPattern:
        """Return the pattern of result `index` of the same instruction."""
        return replace(self, index=index)


class OpSymbol(Struct, Generic[OpT_co], frozen=True, eq=False):
    """A symbol for an instruction of one of `ops`; calling it builds a pattern.

    In a match it stands for the op with its attributes; if called several times in one pattern, for
    the op of the outermost call.
    """

    ops: tuple[type[OpT_co], ...]

    def __call__(
        self, *operands: Operand | Operands | OpPattern, **attributes: object
    ) -> OpPattern:
        """Return a pattern.

        Raise ValueError if the number of operands or the name of an attribute is wrong.
        """
        first = tuple(operand for operand in operands if not isinstance(operand, Operands))
        rest = operands[-1] if operands and isinstance(operands[-1], Operands) else None
        for op in self.ops:
            _require_operands(op, len(operands), len(first), rest)
            for name in attributes:
                if name not in op.attribute_types:
                    known = ", ".join(op.attribute_types) or "none"
                    raise ValueError(f"`{op.name}` has no attribute `{name}`; it has {known}")
        return OpPattern(self, first, attributes, rest)


def calls(*ops: type[OpT]) -> OpSymbol[OpT]:
    """Return a symbol for an instruction of one of `ops`."""
    return OpSymbol(ops)


def _require_operands(op: type[Op], count: int, first: int, rest: Operands | None) -> None:
    least = len(op.operand_names)
    if rest and not op.variadic:
        raise ValueError(f"`{op.name}` takes {least} operands, not any number of them")
    if first + bool(rest) != count:
        raise ValueError(f"`{op.name}`: only the last operand can stand for all that follow")
    if first < least - bool(rest) or (first > least and not op.variadic):
        raise ValueError(f"`{op.name}` takes {least} operands, the pattern has {first}")


class Match:
    """A match of a pattern: maps each symbol to its value, attribute or op."""

    def __init__(self, root: InstructionNode, rewriter: Rewriter) -> None:
        self.root = root
        self._rewriter = rewriter
        self._bindings: dict[object, object] = {}

    @overload
    def __getitem__(self, symbol: Operand) -> Value: ...
    @overload
    def __getitem__(self, symbol: Operands) -> tuple[Value, ...]: ...
    @overload
    def __getitem__(self, symbol: Attribute[T]) -> T: ...
    @overload
    def __getitem__(self, symbol: OpSymbol[OpT]) -> OpT: ...
    def __getitem__(self, symbol: Operand | Operands | Attribute[T] | OpSymbol[OpT]) -> object:
        """Return the binding of `symbol`; KeyError if the pattern does not contain it."""
        return self._bindings[symbol]

    @property
    def type(self) -> TensorType:
        """The type of the first result of the matched root instruction."""
        return self.root.results[0].type

    @property
    def operands(self) -> list[Value]:
        """The operands of the matched root instruction."""
        return self.root.operands

    def users(self) -> list[InstructionNode]:
        """Return the nodes that read a result of the matched root instruction."""
        return [user for result in self.root.results for user in self._rewriter.users(result)]

    def is_read_once(self, value: Value) -> bool:
        """Return whether only one node reads `value`, once, and the region does not return it."""
        return self._rewriter.reads(value) == 1

    def definition(self, value: Value) -> InstructionNode | None:
        """Return the node that defines `value`, None for a parameter of the region."""
        return self._rewriter.definition(value)

    def bind(self, symbol: object, found: object) -> bool:
        """Bind `symbol` to `found`; return False if it is already bound to something else."""
        return self._bindings.setdefault(symbol, found) == found

    def bind_op(self, symbol: OpSymbol[Op], op: Op) -> None:
        """Bind `symbol` to `op`, unless it is already bound further out."""
        self._bindings.setdefault(symbol, op)


def find_match(pattern: OpPattern, root: InstructionNode, rewriter: Rewriter) -> Match | None:
    """Return the match of `pattern` at `root`, None if there is none.

    The root of a pattern is a whole instruction: its `index` is ignored.
    """
    # Most roots fail at an operand's op, which is told without a match to fill.
    for part, value in zip(pattern.operands, root.operands, strict=False):
        if isinstance(part, OpPattern):
            node = rewriter.definition(value)
            if node is None or type(node.op) not in part.symbol.ops:
                return None
    match = Match(root, rewriter)
    return match if _matches_node(pattern, root, match, rewriter) else None


def _matches_node(
    pattern: OpPattern, node: InstructionNode, match: Match, rewriter: Rewriter
) -> bool:
    if type(node.op) not in pattern.symbol.ops or not _matches_count(pattern, node, match):
        return False
    match.bind_op(pattern.symbol, node.op)
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


def _matches_count(pattern: OpPattern, node: InstructionNode, match: Match) -> bool:
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


# Rewrites: a pattern, and a function that returns the replacement or declines.


class Emitter:
    """Adds instructions before the one that is being replaced, and records them."""

    def __init__(self, rewriter: Rewriter, before: InstructionNode) -> None:
        self._rewriter = rewriter
        self._before = before
        self.emitted: list[InstructionNode] = []

    def __call__(self, op: Op, *operands: Value) -> Value:
        """Add an instruction that has one result and return that result."""
        (result,) = self.many(op, *operands)
        return result

    def many(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """Add an instruction and return its results; ProgramError if the operands do not fit."""
        if any(operand in self._before.results for operand in operands):
            replaced = self._before.op.name
            raise ProgramError(f"`{op.name}` cannot read the `{replaced}` that it helps to replace")
        node = self._rewriter.insert(op, operands, self._before)
        self.emitted.append(node)
        return node.results


Replacement = Callable[[Match, Emitter], Value | Sequence[Value] | Declined]
"""Returns the right-hand side: one value, or one per result of the matched instruction, of the same
types, built from values of the match and of `emit(op, *operands)`. It must decline before emitting
anything.
"""


class Rewrite(Struct, frozen=True, eq=False):
    """One equation over ops; `@rewrite(pattern)` makes it from a function.

    Both sides are equal bit for bit, and repeated application must terminate.
    """

    name: str
    """The name in the journal: the name of the function, `neg_of_neg`, as `NegOfNeg`."""
    equation: str
    """The first line of the docstring, such as `neg(neg(x)) -> x`."""
    pattern: OpPattern
    """The left-hand side."""
    replacement: Replacement


def rewrite(pattern: OpPattern) -> Callable[[Replacement], Rewrite]:
    """Decorator: the function replaces instructions that `pattern` matches.

    Its docstring begins with the equation; ValueError without one.

    >>> @rewrite(transpose(transpose(x, permutation=p), permutation=q))
    ... def transpose_of_transpose(m: Match, emit: Emitter) -> Value:
    ...     '''transpose(transpose(x, p), q) -> transpose(x, p[q])'''
    ...     return emit(Transpose(tuple(m[p][axis] for axis in m[q])), m[x])
    """

    def make(replacement: Replacement) -> Rewrite:
        if not replacement.__doc__:
            raise ValueError(f"`{replacement.__name__}` needs a docstring that states its equation")
        name = "".join(word.capitalize() for word in replacement.__name__.split("_"))
        return Rewrite(name, replacement.__doc__.splitlines()[0], pattern, replacement)

    return make
