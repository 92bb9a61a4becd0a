"""Splits PTIR text into tokens with positions, so that errors can point at them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from msgspec import Struct

from gptrs.errors import ParseError
from gptrs.ir.symbolic_dim import PATTERN

TokenKind = Literal[
    "word", "number", "dim", "string", "value", "symbol", "end",
    "->", "=", ":", ",", "(", ")", "{", "}", "[", "]", "?",
]  # fmt: skip

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""A name after `%` or `@`; `%` may also be followed by only digits."""

# Possessive repeats cannot backtrack: time is linear and memory constant for any text.
_BLANK = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+)*+")
_SHOWN = 40


@cache
def _token() -> re.Pattern[str]:
    """Return the pattern of a token; few processes read text, and compiling it takes 4 ms."""
    return re.compile(
        rf"""
      (?P<dim>{PATTERN})
    | (?P<number>-?(?:[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|inf\b)|nan\b)
    | (?P<word>{IDENTIFIER.pattern})
    | (?P<value>%(?:[0-9]++|{IDENTIFIER.pattern}))
    | (?P<symbol>@{IDENTIFIER.pattern})
    | (?P<string>"[^"\n]*+")
    | (?P<punctuation>->|[=:,(){{}}\[\]?])
        """,
        re.VERBOSE,
    )


class Source(Struct, frozen=True, eq=False):
    """The whole text, from which errors quote a line."""

    text: str

    def error(self, at: int, message: str) -> ParseError:
        """Return a ParseError that points at the character with the 0-based offset `at`."""
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end].rstrip("\r")
        number = self.text.count("\n", 0, at) + 1
        return ParseError(message, line=number, column=at - start + 1, source_line=line)


class Token(NamedTuple):
    """A piece of the text; punctuation has its own text as kind."""

    kind: TokenKind
    text: str
    at: int
    source: Source

    def error(self, message: str) -> ParseError:
        """Return a ParseError that points at this token."""
        return self.source.error(self.at, message)

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return f"`{self.text[:_SHOWN]}{'...' if len(self.text) > _SHOWN else ''}`"


class Lexer:
    """Reads tokens one at a time; `token` is the next one.

    `words` maps words of an older version to their current spelling.
    """

    def __init__(self, text: str, words: Mapping[str, str] | None = None) -> None:
        self._source = Source(text)
        self.words = words or {}
        self._position = 0
        self.token = self._read()

    def advance(self) -> Token:
        """Consume the next token and return it."""
        passed = self.token
        self.token = self._read()
        return passed

    def take(self, kind: TokenKind, wanted: str) -> Token:
        """Consume a token of this kind; else ParseError "expected `wanted`, found ..."."""
        if self.token.kind != kind:
            raise self.expected(wanted)
        return self.advance()

    def skip(self, kind: TokenKind) -> bool:
        """Consume the next token if it is of this kind; return whether it was."""
        found = self.token.kind == kind
        if found:
            self.advance()
        return found

    def expected(self, wanted: str) -> ParseError:
        """Return a ParseError at the next token."""
        return self.token.error(f"expected {wanted}, found {self.token}")

    def _read(self) -> Token:
        text = self._source.text
        blank = _BLANK.match(text, self._position)
        at = blank.end() if blank else self._position
        match = _token().match(text, at)
        if match is None:
            if at == len(text):
                return Token("end", "", at, self._source)
            if text[at] == '"':
                raise self._source.error(at, 'expected a closing `"` on the same line')
            raise self._source.error(at, f"unexpected character {_visible(text[at])}")
        self._position = match.end()
        group = match.lastgroup
        found = match.group()
        kind = found if group == "punctuation" else group
        spelled = self.words.get(found, found) if kind == "word" else found
        return Token(kind, spelled, at, self._source)  # pyright: ignore[reportArgumentType]


def _visible(character: str) -> str:
    return f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"
