"""Literals in JSON: the type, and base64 of the elements as they are stored.

`{"type": "f32[2]", "data": "AACAPwAAAEA="}` holds every element in row-major order, little-endian,
a 4-bit integer in the low half of a byte of its own; `{"type": "f32[1000]", "splat": "AAAAAA=="}`
holds the one element that is repeated.
"""

from __future__ import annotations

import base64
import binascii

from gptrs.errors import ProgramError
from gptrs.ir.json_node import JsonNode
from gptrs.ir.literal import Literal

LITERAL_SCHEMA: dict[str, object] = {"$ref": "#/$defs/literal"}


def literal_to_json(literal: Literal) -> dict[str, object]:
    """Return the one JSON form of `literal`: a splat if all of several elements are equal."""
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
    """Return the `size` bytes that a string holds in base64, counted before they are decoded."""
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
