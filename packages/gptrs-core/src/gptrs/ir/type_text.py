"""Reads types as written, `f32[2, 3]`, with limits that are checked before anything is built."""

from __future__ import annotations

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.bounds import require_bounded
from gptrs.ir.lexer import Lexer, Token
from gptrs.ir.symbolic_dim import parse_dim
from gptrs.ir.tensor_type import MAX_RANK, TensorType

Annotation = tuple[Token, TensorType]
"""A written type and the token that it begins with."""


def parse_type(text: str) -> TensorType:
    """Return the type that `text` writes, `f32[2, 3]`; ParseError if it does not."""
    lexer = Lexer(text)
    found = read_type(lexer)
    lexer.take("end", "nothing after the type")
    return found


def read_types(lexer: Lexer) -> tuple[Annotation, ...]:
    """Return one type, or several in parentheses."""
    if not lexer.skip("("):
        return ((lexer.token, read_type(lexer)),)
    types: list[Annotation] = []
    while not lexer.skip(")"):
        if types:
            lexer.take(",", "`,` or `)`")
        types.append((lexer.token, read_type(lexer)))
    return tuple(types)


def read_type(lexer: Lexer) -> TensorType:
    """Return the next type; ParseError at the part that is invalid."""
    return read_type_after(lexer.take("word", "a type such as `f32[2, 3]`"), lexer)


def read_type_after(name: Token, lexer: Lexer) -> TensorType:
    """Return the type whose dtype `name` has been consumed and whose dims follow."""
    try:
        dtype = dtypes.by_name(name.text)
    except ProgramError as error:
        raise name.error(f"unknown dtype {name}; {error.hint}") from None
    lexer.take("[", "`[` and the dims of the type")
    dims: list[int] = []
    while not lexer.skip("]"):
        if dims:
            lexer.take(",", "`,` or `]`")
        if len(dims) == MAX_RANK:
            raise lexer.token.error(f"a type has at most {MAX_RANK} dims")
        dims.append(_read_dim(lexer))
    try:
        type_ = TensorType(dtype, tuple(dims))
        require_bounded(type_)
    except ProgramError as error:
        raise name.error(str(error)) from None
    return type_


def _read_dim(lexer: Lexer) -> int:
    token = lexer.token
    if token.kind == "dim":
        lexer.advance()
        return read_symbolic(token)
    if not token.text.isdigit() or len(token.text) > 20:
        raise lexer.expected("a dim, a whole number of at most 20 digits or symbols as in `2*?0+1`")
    lexer.advance()
    return int(token.text)


def read_symbolic(token: Token) -> int:
    """Return the dim of a token of kind `dim`."""
    try:
        return parse_dim(token.text)
    except ProgramError as error:
        raise token.error(str(error)) from None
