"""The values of attributes as written, not yet given a meaning: words, lists, calls, types."""

from __future__ import annotations

from gptrs.errors import ParseError
from gptrs.ir.lexer import Lexer, Token
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import read_type_after
from gptrs.quick_dataclass import dataclass

MAX_DEPTH = 64
"""Deepest nesting of brackets: no type has that many axes, and recursion stays shallow."""


@dataclass(frozen=True, slots=True, eq=False)
class SyntaxSequence:
    """`[a, b]` or `(a, b)`; `opening` is the bracket that it begins with."""

    opening: Token
    items: tuple[SyntaxNode, ...]

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the opening bracket."""
        return self.opening.error(message)

    @property
    def is_list(self) -> bool:
        """Whether this is written with square brackets."""
        return self.opening.kind == "["

    def __str__(self) -> str:
        if self.is_list:
            return f"a list of {len(self.items)}"
        return f"a group of {len(self.items)} in parentheses"


@dataclass(frozen=True, slots=True, eq=False)
class SyntaxCall:
    """`word(argument)`."""

    word: Token
    argument: SyntaxNode

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the word."""
        return self.word.error(message)

    def __str__(self) -> str:
        return f"`{self.word.text}(...)`"


@dataclass(frozen=True, slots=True, eq=False)
class SyntaxType:
    """`f32[2, 3]`, a type where a value is expected."""

    word: Token
    type: TensorType

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the dtype."""
        return self.word.error(message)

    def __str__(self) -> str:
        return f"the type `{self.type}`"


@dataclass(frozen=True, slots=True, eq=False)
class SyntaxNames:
    """`{name = value, ...}`; `opening` is the bracket, each name comes with its token."""

    opening: Token
    items: dict[str, tuple[Token, SyntaxNode]]

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the opening bracket."""
        return self.opening.error(message)

    def __str__(self) -> str:
        return f"a group of {len(self.items)} names in braces"


SyntaxNode = Token | SyntaxSequence | SyntaxCall | SyntaxType | SyntaxNames
_ATOMS = ("word", "number", "dim", "string", "symbol")


def read_value(lexer: Lexer, depth: int = 0) -> SyntaxNode:
    """Return the value that comes next.

    Raise ParseError where there is none or brackets nest too deep.
    """
    token = lexer.token
    if depth > MAX_DEPTH:
        raise token.error(f"brackets are nested deeper than {MAX_DEPTH}")
    if token.kind in ("[", "("):
        return _read_sequence(lexer, depth)
    if token.kind == "{":
        return read_names(lexer, depth + 1)
    if token.kind not in _ATOMS:
        raise lexer.expected("a value such as `1`, `true`, `f32` or `[0, 1]`")
    lexer.advance()
    if token.kind == "word" and lexer.skip("("):
        argument = read_value(lexer, depth + 1)
        lexer.take(")", "`)`")
        return SyntaxCall(token, argument)
    if token.kind == "word" and lexer.token.kind == "[":
        return SyntaxType(token, read_type_after(token, lexer))
    return token


def read_names(lexer: Lexer, depth: int = 0) -> SyntaxNames:
    """`{name = value, ...}`, each name once."""
    opening = lexer.take("{", "`{`")
    found: dict[str, tuple[Token, SyntaxNode]] = {}
    while not lexer.skip("}"):
        if found:
            lexer.take(",", "`,` or `}`")
        name = lexer.take("word", "the name of an attribute")
        if name.text in found:
            raise name.error(f"attribute {name} is given twice")
        lexer.take("=", "`=`")
        found[name.text] = (name, read_value(lexer, depth))
    return SyntaxNames(opening, found)


def _read_sequence(lexer: Lexer, depth: int) -> SyntaxSequence:
    opening = lexer.advance()
    closing = "]" if opening.kind == "[" else ")"
    items: list[SyntaxNode] = []
    while not lexer.skip(closing):
        if items:
            lexer.take(",", f"`,` or `{closing}`")
        items.append(read_value(lexer, depth + 1))
    return SyntaxSequence(opening, tuple(items))
