"""Literals as text: nested lists of numbers, `splat(x)` and `hex("...")`, exact to the bit.

Everything printed here reads back as the same bytes. A NaN other than `nan`, which no number
represents, is written as the hex of its storage.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NewType

import numpy as np
from msgspec import Struct

from gptrs.errors import ProgramError
from gptrs.ir.dtypes import DType, f32, f64
from gptrs.ir.lexer import Token
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.value_tree import JsonNode, SyntaxCall, SyntaxNode, SyntaxSequence

# Dense constants, compared and hashed by their bits, so that NaN payloads and -0.0 are distinct.


class Literal(Struct, frozen=True):
    """A tensor value: its type and its elements in row-major order, in the NumPy storage format."""

    type: TensorType
    data: bytes

    def __post_init__(self) -> None:
        if not self.type.is_static:
            raise ProgramError(f"a literal has no symbolic dims, got `{self.type}`")
        if len(self.data) != self.type.nbytes:
            raise ProgramError(
                f"a literal of `{self.type}` needs {self.type.nbytes} bytes, got {len(self.data)}"
            )
        bits = self.type.dtype.bits
        if bits < 8 and self.data and int(np.frombuffer(self.data, np.uint8).max()) >> bits:
            raise ProgramError(
                f"a literal of `{self.type}` has an element of more than {bits} bits"
            )

    @classmethod
    def of(cls, array: np.ndarray) -> Literal:
        """Return the literal with the elements of `array`."""
        type_ = TensorType.of(array)
        data = np.ascontiguousarray(array, dtype=type_.dtype.numpy).tobytes()
        # NumPy ignores the upper half of the byte, but equality compares whole bytes.
        if type_.dtype.bits == 4:
            data = (np.frombuffer(data, np.uint8) & 0xF).tobytes()
        return cls(type_, data)

    @classmethod
    def full(cls, value: complex, dtype: DType, shape: tuple[int, ...] = ()) -> Literal:
        """Return `value` in every element, converted to `dtype` by NumPy's rules."""
        return cls.of(np.full(shape, value, dtype=dtype.numpy))

    @property
    def array(self) -> np.ndarray:
        """A read-only NumPy view of the elements."""
        return np.frombuffer(self.data, dtype=self.type.dtype.numpy).reshape(self.type.shape)

    @property
    def splat(self) -> bytes | None:
        """The bytes of the element if all elements are equal; None if they differ or there are
        none."""
        size = self.type.dtype.itemsize
        first = self.data[:size]
        return first if first and first * self.type.size == self.data else None


Scalar = NewType("Scalar", Literal)
Scalar.__doc__ = "A literal of rank 0, as an attribute, with the element type of the first result."


MAX_LISTED = 16
"""Most elements that are printed one by one."""
_MAX_DIGITS = 1000
_HEX = re.compile(r'"[0-9a-fA-F]*"')


def print_literal(literal: Literal) -> str:
    """Return the canonical text of `literal`; its type is written after the instruction."""
    type_ = literal.type
    if type_.size == 0:
        return "[]"
    element = literal.splat
    if type_.size > 1 and element is not None:
        return f"splat({_print_element(element, type_.dtype)})"
    if type_.size > MAX_LISTED:
        return _print_hex(literal.data)
    step = type_.dtype.itemsize
    pieces = (literal.data[i : i + step] for i in range(0, len(literal.data), step))
    texts = [_print_element(piece, type_.dtype) for piece in pieces]
    for dim in reversed(type_.shape):
        texts = [f"[{', '.join(texts[i : i + dim])}]" for i in range(0, len(texts), dim)]
    return texts[0]


def parse_literal(node: SyntaxNode, type_: TensorType) -> Literal:
    """Return the literal of `type_` written as `node`; ParseError points at the part that does not
    fit.

    >>> parse_literal(read_value(Lexer("[1.0, -inf]")), TensorType(f32, (2,)))
    """
    if not type_.is_static:
        raise node.error(f"a literal has no symbolic dims, got `{type_}`")
    if isinstance(node, SyntaxCall) and node.word.text == "splat":
        element = _parse_elements([node.argument], type_.dtype)
        return Literal(type_, element * type_.size)
    if isinstance(node, SyntaxCall) and type_.rank:
        return Literal(type_, _parse_hex(node, type_))
    return Literal(type_, _parse_elements(_leaves(node, type_), type_.dtype))


def _print_element(data: bytes, dtype: DType) -> str:
    value = np.frombuffer(data, dtype.numpy)[0]
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_float:
        text = _shortest(data, dtype)
        return _print_hex(data) if text is None else text
    half = len(data) // 2
    parts = [_shortest(part, _part(dtype)) for part in (data[:half], data[half:])]
    return _print_hex(data) if None in parts else f"({parts[0]}, {parts[1]})"


def _shortest(data: bytes, dtype: DType) -> str | None:
    """Return the shortest decimal that converts to exactly these bits, None if there is none."""
    with np.errstate(all="ignore"):
        value = float(np.frombuffer(data, dtype.numpy)[0])
        # 17 significant digits distinguish any two f64; for infinities and NaN the precision is
        # ignored.
        for digits in range(17):
            text = repr(float(f"{value:.{digits}e}"))
            if np.array(float(text)).astype(dtype.numpy).tobytes() == data:
                return text
    return None


def _print_hex(data: bytes) -> str:
    return f'hex("{data.hex()}")'


def _part(dtype: DType) -> DType:
    return f32 if dtype.bits == 64 else f64


def _leaves(node: SyntaxNode, type_: TensorType) -> list[SyntaxNode]:
    """Return the elements of nested lists that have the shape of `type_`."""
    if type_.size == 0 and isinstance(node, SyntaxSequence) and node.is_list and not node.items:
        return []
    level = [node]
    for dim in type_.shape:
        inner: list[SyntaxNode] = []
        for part in level:
            if not isinstance(part, SyntaxSequence) or not part.is_list or len(part.items) != dim:
                raise part.error(f"`{type_}` needs a list of {dim} here, got {part}")
            inner.extend(part.items)
        level = inner
    return level


def _parse_elements(leaves: list[SyntaxNode], dtype: DType) -> bytes:
    """Return the storage of these elements, each a number, a pair of numbers or hex."""
    size = dtype.itemsize
    raw: dict[int, bytes] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, SyntaxCall):
            raw[index] = _parse_hex(leaf, TensorType(dtype, ()))
    numbers: list[SyntaxNode] = [leaf for leaf in leaves if not isinstance(leaf, SyntaxCall)]
    data = _parse_numbers(numbers, dtype)
    if not raw:
        return data
    pieces = iter(range(0, len(data), size))
    parts = [
        raw[index] if index in raw else data[(at := next(pieces)) : at + size]
        for index in range(len(leaves))
    ]
    return b"".join(parts)


def _parse_numbers(leaves: list[SyntaxNode], dtype: DType) -> bytes:
    if dtype.is_complex:
        parts = [part for leaf in leaves for part in _pair(leaf, dtype)]
        return _parse_numbers(parts, _part(dtype))
    if dtype.is_bool:
        return bytes(_bool(leaf) for leaf in leaves)
    if dtype.is_integer:
        values = [_integer(leaf, dtype) for leaf in leaves]
        return np.array(values, dtype=dtype.numpy).tobytes()
    return _parse_floats(leaves, dtype)


def _parse_floats(leaves: list[SyntaxNode], dtype: DType) -> bytes:
    wide = np.array([float(_number(leaf, dtype).text) for leaf in leaves], dtype=np.float64)
    with np.errstate(all="ignore"):
        stored = wide.astype(dtype.numpy)
        lost = np.isfinite(wide) & ~np.isfinite(stored.astype(np.float64))
        lost |= np.isinf(wide) & ~np.isinf(stored.astype(np.float64))
    # Python reads "1e999" as infinity; only the word `inf` may mean it.
    for index in np.flatnonzero(lost | np.isinf(wide)):
        token = _number(leaves[index], dtype)
        if lost[index] or token.text not in ("inf", "-inf"):
            raise token.error(f"{token} is out of the range of {dtype}")
    return stored.tobytes()


def _parse_hex(node: SyntaxCall, type_: TensorType) -> bytes:
    argument = node.argument
    if node.word.text != "hex":
        raise node.error(
            f'expected `hex("...")`, or `splat(x)` for a whole literal, found {node.word}'
        )
    if not isinstance(argument, Token) or not _HEX.fullmatch(argument.text):
        raise argument.error("expected hex digits in quotes")
    digits = len(argument.text) - 2
    if digits != 2 * type_.nbytes:
        what = f"`{type_}` needs {type_.nbytes} bytes, {2 * type_.nbytes} hex digits"
        raise argument.error(f"{what}, got {digits}")
    data = bytes.fromhex(argument.text[1:-1])
    if type_.dtype.bits < 8 and data and max(data) >> type_.dtype.bits:
        raise argument.error(f"an element of {type_.dtype} has {type_.dtype.bits} bits a byte")
    return data


def _pair(leaf: SyntaxNode, dtype: DType) -> tuple[SyntaxNode, ...]:
    if not isinstance(leaf, SyntaxSequence) or leaf.is_list or len(leaf.items) != 2:
        raise leaf.error(f"expected an element of {dtype} such as `(1.0, 0.0)`, found {leaf}")
    return leaf.items


def _bool(leaf: SyntaxNode) -> bool:
    if not isinstance(leaf, Token) or leaf.text not in ("true", "false"):
        raise leaf.error(f"expected `true` or `false`, found {leaf}")
    return leaf.text == "true"


def _integer(leaf: SyntaxNode, dtype: DType) -> int:
    token = _number(leaf, dtype)
    if not token.text.removeprefix("-").isdigit():
        raise token.error(f"expected a whole number, an element of {dtype}, found {token}")
    value = int(token.text)
    low = -(1 << dtype.bits - 1) if dtype.kind == "signed" else 0
    if not low <= value < low + (1 << dtype.bits):
        raise token.error(f"{token} is out of the range of {dtype}")
    return value


def _number(leaf: SyntaxNode, dtype: DType) -> Token:
    if not isinstance(leaf, Token) or leaf.kind != "number":
        raise leaf.error(f"expected an element of {dtype}, found {leaf}")
    if len(leaf.text) > _MAX_DIGITS:
        raise leaf.error(f"a number of more than {_MAX_DIGITS} digits")
    return leaf


# Literals in JSON: the type, and base64 of the stored elements.
#
# `{"type": "f32[2]", "data": "AACAPwAAAEA="}` holds every element in row-major order,
# little-endian, a 4-bit integer in the low half of a separate byte; `{"type": "f32[1000]", "splat":
# "AAAAAA=="}` holds the one element that is repeated.


LITERAL_SCHEMA: dict[str, object] = {"$ref": "#/$defs/literal"}


def literal_to_json(literal: Literal) -> dict[str, object]:
    """Return the canonical JSON form of `literal`: a splat if it has several equal elements."""
    element = literal.splat if literal.type.size > 1 else None
    key, data = ("data", literal.data) if element is None else ("splat", element)
    return {"type": str(literal.type), key: base64.b64encode(data).decode("ascii")}


def literal_from_json(node: JsonNode) -> Literal:
    """Return the literal that `node` holds; ProgramError unless type and bytes agree."""
    fields = node.fields(("type",), ("data", "splat"))
    if len(fields) != 2:
        raise node.error("a literal has either `data` or `splat`")
    type_ = fields["type"].type()
    if not type_.is_static:
        raise fields["type"].error(f"a literal has no symbolic dims, got `{type_}`")
    splat = "splat" in fields
    source = fields["splat" if splat else "data"]
    data = _decoded(source, type_.dtype.itemsize if splat else type_.nbytes)
    if splat:
        node.unfold(type_.nbytes)
        data *= type_.size
    try:
        return Literal(type_, data)
    except ProgramError as error:
        raise source.error(str(error)) from None


def _decoded(node: JsonNode, size: int) -> bytes:
    """Decode `size` bytes from a base64 string, whose length is checked before decoding."""
    length = 4 * ((size + 2) // 3)
    text = node.string(f"{size} bytes in base64", limit=max(length, 2**20))
    if len(text) != length:
        found = f"got {len(text)}"
        raise node.error(f"{size} bytes take {length} characters of base64, {found}")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise node.error("not base64: letters, digits, `+` and `/`, padded with `=`") from None
    if len(data) != size:
        raise node.error(f"expected {size} bytes in base64, found {len(data)}")
    return data
