"""The fields of requests: supported, without effect, or refused with a reason.

A body is a Struct whose fields describe themselves in `Meta`, with `NOTHING` where every value that
the type allows changes no answer. Its `refused` lists further fields of the protocol, and why each
is refused. Reading, the OpenAPI page and docs/requests.md follow from both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

import msgspec
import msgspec.inspect
from msgspec import Struct

from gptrs_serve.problems import RequestError

NOTHING: Final = {"asks": "nothing"}
"""The `extra` in the `Meta` of a field that changes no answer."""
MOST_OBJECTS: Final = 32_768
"""Most objects in a body: each takes about a kilobyte, thirty times its shortest text."""
MOST_NAME: Final = 80
"""Characters of a field's name that errors show: a body of megabytes may be one name."""
_OBJECT: Final = re.compile(rb'\{\s*"')
_HALF: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""The escape of a high surrogate that has no low one behind it."""
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark, which some clients on Windows put before JSON."""
_INTEGERS: Final = msgspec.inspect.IntType, msgspec.inspect.LiteralType
State = Literal["supported", "no effect", "refused"]
Read = TypeVar("Read")


class RequestFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of all bodies."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Refused fields of the protocol, and the reasons."""


class FieldRow(Struct, frozen=True):
    """A field of a protocol: its state, and what it does or why it is not supported."""

    name: str
    state: State
    about: str


def field_rows(kind: type[Struct]) -> list[FieldRow]:
    """Return a row for each field that a body has or refuses."""
    info = known_type(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    rows: list[FieldRow] = []
    for field in info.fields:
        about, is_nothing = _told(field.type)
        state: State = "no effect" if is_nothing else "supported"
        rows.append(FieldRow(field.encode_name, state, about))
    refused: Mapping[str, str] = getattr(kind, "refused", {})
    return rows + [FieldRow(name, "refused", why) for name, why in refused.items()]


def _told(kind: msgspec.inspect.Type) -> tuple[str, bool]:
    """Return the description of a field, and whether it has no effect."""
    if isinstance(kind, msgspec.inspect.Metadata):
        told = cast("Mapping[str, Any]", kind.extra_json_schema or {})
        extra = cast("Mapping[str, Any]", kind.extra or {})
        about, is_nothing = _told(kind.type)
        return str(told.get("description", about)), extra == NOTHING or is_nothing
    if isinstance(kind, msgspec.inspect.UnionType):
        found = [_told(each) for each in kind.types]
        return next((about for about, _ in found if about), ""), any(each for _, each in found)
    return "", False


def decoded(data: bytes, kind: type[Read]) -> Read:
    """Return a body, without nulls; RequestError names the invalid field.

    A body with more than `MOST_OBJECTS` objects is refused.
    """
    # Counted before decoding, by the beginnings of objects with a key. Quotes in texts are escaped,
    # so texts have next to none.
    count = sum(1 for _ in _OBJECT.finditer(data)) if len(data) > MOST_OBJECTS else 0
    if count > MOST_OBJECTS:
        raise RequestError(
            f"the body has {count} objects - messages, parts, schemas -, the limit is"
            f" {MOST_OBJECTS}",
            status=413,
            code="body_too_large",
        )
    try:
        return _decoded(data.removeprefix(_MARK), kind)
    except msgspec.ValidationError as error:
        raise _problem(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        told = str(error)
        # What msgspec says where it finds no room for the second half, in a whole body, too.
        if told == "Input data was truncated" and (half := _HALF.search(data)):
            told = f"a text ends inside an escape: {half[1].decode()} is half of a character"
        raise RequestError(f"the body is not JSON: {told}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", code="invalid_json") from error


def converted(
    fields: Mapping[str, object], kind: type[Read], place: str = "", *, strict: bool = True
) -> Read:
    """Return an object at a `place` of a body; raises RequestError like `decoded`.

    None counts as missing. Without `strict`, numbers and booleans may be texts, as in forms.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        problem = _problem(str(error), kind)
        if place:
            problem.param = place
            problem.message = f"`{place}`: {problem.message}"
        raise problem from error


def _problem(message: str, kind: type) -> RequestError:
    message, _, place = message.partition(" - at `$")
    param = place.rstrip("`").lstrip(".")[:MOST_NAME] or None
    if "unknown field" in message:
        name = message.split("`")[1][:MOST_NAME]
        refused: Mapping[str, str] = {} if param else getattr(kind, "refused", {})
        why = f": {refused[name]}" if name in refused else ""
        name = f"{param}.{name}" if param else name
        told = f"`{name}` is not a parameter that this server supports{why}"
        return RequestError(told, param=name, code="unsupported_parameter")
    rows = field_rows(kind) if param and issubclass(kind, Struct) else []
    why = next((f"; {row.about}" for row in rows
                if row.name == param and row.state == "no effect"), "")  # fmt: skip
    where = f"`{param}`: " if param else ""
    return RequestError(f"{where}{message}{why}", param=param, code="invalid_value")


def _decoded(data: bytes, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        # Clients of OpenAI's libraries send null for what they leave out, and those whose language
        # has one type of numbers 16.0 for 16. Only a body that fails pays for the second reading.
        if b"null" not in data and "got `float`" not in str(error):
            raise
        # Values within dicts of the user (schemas, metadata) stay as they are.
        told = _plain(msgspec.json.decode(data), known_type(kind))
        return msgspec.json.decode(json.dumps(told).encode(), type=kind)


@cache
def known_type(kind: type) -> msgspec.inspect.Type:
    """Return the cached description of a type."""
    return msgspec.inspect.type_info(kind)


def _plain(value: Any, kind: msgspec.inspect.Type) -> Any:
    """Return a value without null fields of its structs, and with integers as integers."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _plain(value, kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            value = _plain(value, each)
    elif isinstance(kind, _INTEGERS) and isinstance(value, float):
        return int(value) if value.is_integer() else value
    elif isinstance(kind, msgspec.inspect.ListType) and isinstance(value, list):
        return [_plain(each, kind.item_type) for each in cast("list[Any]", value)]
    elif isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        types = {field.encode_name: field.type for field in kind.fields}
        return {
            name: _plain(each, types[name]) if name in types else each
            for name, each in fields.items()
            if each is not None
        }
    return value
