"""JSON from possibly hostile files: an object or list, bounded in size and depth, without NaN."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec
import numpy as np

from gptrs.errors import GptrsError, ModelError
from gptrs.quoting import quoted, shown_value

MAX_DEPTH = 64
"""Deepest nesting of lists and objects, unless the caller says otherwise."""
MAX_VALUES = 4_000_000
"""Most lists, objects and commas in one text, which bounds the memory of the parsed values."""
MAX_DIGITS = 400
"""Most digits in a row, enough for any double written out: parsing longer integers takes quadratic
time."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS_AS_0 = bytes.maketrans(b"123456789", b"000000000")
_QUOTED_LINE = re.compile("line [0-9]+ of (`|standard input)")
"""Format in which callers name a line of a file whose name they have quoted."""
_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
"""Types of JSON in errors, by the names that msgspec has for them."""
_TYPES: Final[Mapping[type, str]] = {
    str: "str", int: "int", float: "float", bool: "bool", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_INVALID: Final = re.compile("Invalid (?:enum )?value (.*)")
"""Match msgspec's words for a value that a Literal, an Enum or a tag does not have."""
Record = TypeVar("Record")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(
    data: bytes,
    where: str,
    error: type[GptrsError] = ModelError,
    *,
    hint: str = "download or save it again",
    max_depth: int = MAX_DEPTH,
    constants: bool = False,
) -> dict[str, object]:
    """Return the JSON object in UTF-8 `data`; `where` names the file in errors, of type `error`.

    Refused: anything but an object, a key that occurs twice in one object, NaN, Infinity, numbers
    beyond the range of a double, unpaired surrogates, more than `max_depth` levels, MAX_VALUES
    values or MAX_DIGITS digits. With `constants`, NaN and Infinity are read from `{"__float__":
    "NaN"}` and so on, as transformers 5 writes them, and from the bare words of earlier versions.
    """
    try:
        value = _parsed(data, max_depth, _as_object if constants else _no_constant)
        if not isinstance(value, dict):
            raise _RefusedError(f"it must be an object, found {shown_value(value)}")
    except _RefusedError as problem:
        raise _unusable(where, problem, error, hint) from problem
    return cast("dict[str, object]", value)


def parse_list(data: bytes, where: str, error: type[GptrsError] = ModelError) -> list[object]:
    """Return the JSON list in UTF-8 `data`; for refused input, see `parse_object`."""
    hint = "download or save it again"
    try:
        value = _parsed(data, MAX_DEPTH)
        if not isinstance(value, list):
            raise _RefusedError(f"it must be a list, found {shown_value(value)}")
    except _RefusedError as problem:
        raise _unusable(where, problem, error, hint) from problem
    return cast("list[object]", value)


def record_of(
    value: object, kind: type[Record], where: str, error: type[GptrsError] = ModelError,
    *, hint: str | None = None,
) -> Record:  # fmt: skip
    """Return a parsed value as a record, such as a Struct; types are never converted.

    The `error` names the field by its path, what it must be, and what was found.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        # From the right: a word in the file may contain the same mark.
        told, mark, path = str(problem).rpartition(" - at `$")
        told, path = (told, path.rstrip("`")) if mark else (path, "")
        raise error(f"{where}{_told(told, path, value)}", hint=hint) from None


def _told(told: str, path: str, value: object) -> str:
    """Return what msgspec tells of a value, in our words and with the value that it found."""
    need, _, got = told.removeprefix("Expected ").partition(", got ")
    unknown = _INVALID.fullmatch(told)
    steps = re.findall(r"\.([^.[]+)|\[([0-9]+|\.\.\.)\]", path)
    at = _at(value, steps)
    # A table has `...` for its key. msgspec stops at the first fault, which is of the type it got.
    typed = got.startswith("`")
    fits = (
        (name, each)
        for name, each in at
        if (not typed or got == f"`{_TYPES[type(each)]}`")
        and (unknown is None or repr(each) == unknown[1])
    )
    name, found = next(fits, (path.lstrip("."), got))
    where = f": {quoted(name)} " if name else " "
    if unknown is not None:
        return f"{where}cannot be {shown_value(found)}"
    if not told.startswith("Expected "):
        problem = told.replace("Object missing required field", "needs")
        return where + problem.replace("Object contains unknown field", "has an unknown field")
    need = re.sub("`([^`]*)`", lambda types: _in_words(types[1]), need)
    return f"{where}must be {need}, found {shown_value(found)}"


def _at(value: Any, steps: list[tuple[str, str]]) -> Iterator[tuple[str, object]]:
    """Yield the values that a path of msgspec may mean, with their names."""
    if not steps:
        yield "", value
        return
    (key, index), *rest = steps
    for each in value if index == "..." else [key or int(index)]:
        shown = f"[{each}]" if isinstance(each, int) else f".{each}"
        for name, found in _at(value[each], rest):
            between = "." if name and not name.startswith("[") else ""
            yield f"{shown.removeprefix('.')}{between}{name}", found


def _in_words(types: str) -> str:
    named = types.removesuffix(" | null").split(" | ")  # null, as a missing field, needs no word
    *most, last = (_WORDS.get(each, each) for each in named)
    return f"{', '.join(most)} or {last}" if most else last


def require_bounded(
    data: bytes, where: str, error: type[GptrsError] = ModelError, *, hint: str, max_depth: int
) -> None:
    """Raise `error` for JSON of more than `max_depth` levels, MAX_VALUES values or MAX_DIGITS
    digits.

    For data that another library parses, which also decides whether it is JSON at all.
    """
    try:
        _check_bounds(data, max_depth)
    except _RefusedError as problem:
        raise _unusable(where, problem, error, hint) from problem


def _as_object(text: str) -> dict[str, object]:
    return {"__float__": text}


def _no_constant(text: str) -> NoReturn:
    raise _RefusedError(f"{quoted(text)} is not a JSON number")


def _parsed(
    data: bytes, max_depth: int, constant: Callable[[str], object] = _no_constant
) -> object:
    """Return the value in `data`; _RefusedError describes any fault."""
    try:
        _check_bounds(data, max_depth)
        value: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_float=_finite,
            parse_constant=constant,
        )
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _RefusedError("a string has an unpaired surrogate") from None
    except UnicodeDecodeError as found:
        raise _RefusedError(f"byte {found.start} is not UTF-8") from None
    except (ValueError, RecursionError) as found:
        raise _RefusedError(str(found)) from None
    return value


def _unusable(where: str, problem: Exception, error: type[GptrsError], hint: str) -> GptrsError:
    shown = where if _QUOTED_LINE.match(where) else quoted(where, 200)
    return error(f"{shown} is not usable JSON: {problem}", hint=hint)


class _RefusedError(ValueError):
    """JSON that the `json` module accepts and we refuse; a ValueError like the module's own
    errors."""


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise _RefusedError(f"the key {quoted(twice)} occurs twice in one object")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _RefusedError(f"the number {quoted(text)} is out of range")
    return number


def _check_bounds(data: bytes, max_depth: int) -> None:
    """Refuse text that could not be parsed in bounded memory and stack."""
    bare = _STRING.sub(b"", data)
    if sum(bare.count(char) for char in (b",", b"[", b"{")) > MAX_VALUES:
        raise _RefusedError(f"it has more than {MAX_VALUES} values")
    if b"0" * (MAX_DIGITS + 1) in bare.translate(_DIGITS_AS_0):
        raise _RefusedError(f"it has a number of more than {MAX_DIGITS} digits")
    brackets = np.frombuffer(bare.translate(None, _NOT_BRACKETS), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    depth = np.cumsum(np.where(opening, 1, -1))
    if depth.size and int(depth.max()) > max_depth:
        raise _RefusedError(f"it is nested more than {max_depth} levels deep")
