"""Attribute values as parsed, without an interpretation yet: words, lists, calls, types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from msgspec import Struct, field

from gptrs.errors import ParseError, ProgramError
from gptrs.ir.lexer import Lexer, Token
from gptrs.ir.symbolic_dim import MAX_TEXT
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import read_symbolic, read_type, read_type_after
from gptrs.quoting import clipped, quoted, shown_value

MAX_DEPTH = 64
"""Deepest nesting of brackets: no type has that many axes, and recursion is bounded."""


class SyntaxSequence(Struct, frozen=True, eq=False):
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


class SyntaxCall(Struct, frozen=True, eq=False):
    """`word(argument)`."""

    word: Token
    argument: SyntaxNode

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the word."""
        return self.word.error(message)

    def __str__(self) -> str:
        return f"`{self.word.text}(...)`"


class SyntaxType(Struct, frozen=True, eq=False):
    """`f32[2, 3]`, a type where a value is expected."""

    word: Token
    type: TensorType

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at the dtype."""
        return self.word.error(message)

    def __str__(self) -> str:
        return f"the type `{self.type}`"


class SyntaxNames(Struct, frozen=True, eq=False):
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

    Raises ParseError if there is none or brackets nest too deeply.
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


# The JSON values of a program, each with its path for errors.


MAX_STRING = 8192
"""Longest string other than names and literals: a type of 32 symbolic dims fits."""


class Allowance(Struct):
    """State shared by all values of one text: the bytes left to unfold, and names of old
    versions."""

    splat_bytes: int
    """Bytes that splats may still unfold to."""
    dtype_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Dtypes of the text's version that have been renamed since."""


class JsonNode(Struct, frozen=True, eq=False):
    """One JSON value; the methods read it as the expected type, or raise a ProgramError."""

    value: object
    path: str
    allowance: Allowance

    def error(self, message: str) -> ProgramError:
        """Return a ProgramError that names the path."""
        return ProgramError(f"{self.path}: {message}" if self.path else message)

    def expected(self, wanted: str) -> ProgramError:
        """Return a ProgramError "expected `wanted`, found ..."."""
        return self.error(f"expected {wanted}, found {self}")

    def __str__(self) -> str:
        value = self.value
        if value is None or isinstance(value, bool):
            return {None: "`null`", True: "`true`", False: "`false`"}[value]
        if isinstance(value, str):
            return f'the string `"{clipped(value, 40)}"`'
        if isinstance(value, list):
            return f"a list of {len(cast('list[object]', value))}"
        if isinstance(value, dict):
            return f"an object of {len(cast('dict[str, object]', value))} keys"
        return shown_value(value)

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, JsonNode]:
        """Return the values of an object with all required keys and no unknown ones."""
        found = self._object()
        known = [*required, *optional]
        for key in found:
            if key not in known:
                listed = ", ".join(f"`{name}`" for name in known)
                raise self.error(f"unknown key {quoted(key)}; the keys are {listed}")
        for key in required:
            if key not in found:
                raise self.error(f"the key `{key}` is missing")
        return self.entries()

    def entries(self) -> dict[str, JsonNode]:
        """Return the values of an object by their keys."""
        dot = "." if self.path else ""
        return {
            key: JsonNode(value, f"{self.path}{dot}{clipped(key, 40)}", self.allowance)
            for key, value in self._object().items()
        }

    def items(self) -> Iterator[JsonNode]:
        """Return the values of a list, one after the other."""
        for index, value in enumerate(self.list()):
            yield JsonNode(value, f"{self.path}[{index}]", self.allowance)

    def list(self) -> list[object]:
        """Return the raw list."""
        if not isinstance(self.value, list):
            raise self.expected("a list")
        return cast("list[object]", self.value)

    def _object(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.expected("an object")
        return cast("dict[str, object]", self.value)

    def string(self, wanted: str = "a string", limit: int = MAX_STRING) -> str:
        """Return a string of at most `limit` characters."""
        if not isinstance(self.value, str):
            raise self.expected(wanted)
        if len(self.value) > limit:
            raise self.error(f"a string of {len(self.value)} characters, more than {limit}")
        return self.value

    def type(self) -> TensorType:
        """Return a tensor type as in the text form, `"f32[2, 3]"`."""
        text = self.string('a type such as `"f32[2, 3]"`')
        try:
            lexer = Lexer(text, self.allowance.dtype_names)
            type_ = read_type(lexer)
            if lexer.token.kind != "end":
                raise lexer.expected("the end of the type")
        except ParseError as error:
            reason = error.message.split("\n")[0].partition(": ")[2]
            raise self.error(f"{reason} in the type {quoted(text)}") from None
        return type_

    def dim(self) -> int:
        """Return a symbolic dim as in the text form, `"2*?0+1"`."""
        text = self.string('a dim such as `5` or `"2*?0+1"`', MAX_TEXT)
        try:
            token = Lexer(text).token
            if token.kind != "dim" or token.text != text:
                raise self.expected('a dim such as `5` or `"2*?0+1"`')
            return read_symbolic(token)
        except ParseError as error:
            raise self.error(error.message.split("\n")[0].partition(": ")[2]) from None

    def unfold(self, size: int) -> None:
        """Take `size` bytes from those that splats may unfold to."""
        self.allowance.splat_bytes -= size
        if self.allowance.splat_bytes < 0:
            raise self.error("the splats of the program unfold to too many bytes")

    def dtype_name(self) -> str:
        """Return the name of a dtype in current spelling, whether known or not."""
        name = self.string("the name of a dtype")
        return self.allowance.dtype_names.get(name, name)
