"""Strict JSON: what real model files hold is read, everything doubtful is refused by name."""

from __future__ import annotations

import json
import time
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from gptrs.errors import CheckpointError, ModelError
from gptrs.strict_json import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    parse_list,
    parse_object,
    record_of,
)


def test_reads_what_json_reads() -> None:
    value = {"a": [1, -2.5, True, None], "b": {"c": 'quote " and \\ [{', "d": "\u00e9\U0001f600"}}
    assert parse_object(json.dumps(value).encode(), "f.json") == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode(), "f.json") == value


def test_numbers_that_json_lacks_are_those_of_transformers() -> None:
    found = parse_object(b'{"a": [0.0, Infinity], "b": NaN}', "f.json", constants=True)
    assert found == {"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "NaN"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key `c` occurs twice"),
        (b'{"a": NaN}', "`NaN` is not a JSON number"),
        (b'{"a": -Infinity}', "`-Infinity` is not a JSON number"),
        (b'{"a": 1e999}', "the number `1e999` is out of range"),
        (b"[1]", "it must be an object, found `[1]`"),
        (b'"a"', "it must be an object"),
        (b"", "Expecting value"),
        (b'{"a": 1} {"b": 2}', "Extra data"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": "\\ud800"}', "unpaired surrogate"),
        (b'{"\\udc00": 1}', "unpaired surrogate"),
        ('{"a": 1}'.encode("utf-16"), "byte 0 is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 400 digits"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", f"more than {MAX_DEPTH} levels"),
        (b'{"a": [' + b"1," * MAX_VALUES + b"1]}", f"more than {MAX_VALUES} values"),
    ],
)
def test_refuses(text: bytes, problem: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_object(text, "f.json")
    assert problem in str(caught.value)
    assert "`f.json` is not usable JSON" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_deepest_nesting_allowed_is_read() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert "a" in parse_object(nested(MAX_DEPTH), "f.json")
    with pytest.raises(ModelError, match="levels deep"):
        parse_object(nested(MAX_DEPTH + 1), "f.json")


def test_the_longest_numbers_allowed_are_read() -> None:
    digits = "7" * MAX_DIGITS
    assert parse_object(f'{{"a": {digits}}}'.encode(), "f.json") == {"a": int(digits)}
    with pytest.raises(ModelError, match="more than 400 digits"):
        parse_object(f'{{"a": {digits}7}}'.encode(), "f.json")
    assert parse_object(f'{{"a": "{digits}7"}}'.encode(), "f.json") == {"a": f"{digits}7"}


def test_brackets_and_commas_in_strings_do_not_count() -> None:
    text = json.dumps({"a": '[{,\\"' * 1_500_000}).encode()
    assert len(parse_object(text, "f.json")) == 1


@pytest.mark.parametrize(
    "text", [b'{"a": "' + b'\\"' * 2_000_000, b'"' * 2_000_001, b"\\" * 4_000_000]
)
def test_unclosed_strings_take_linear_time(text: bytes) -> None:
    start = time.perf_counter()
    with pytest.raises(ModelError):
        parse_object(text, "f.json")
    assert time.perf_counter() - start < 5


def test_the_error_class_is_the_callers() -> None:
    with pytest.raises(CheckpointError):
        parse_object(b"[]", "f.json", CheckpointError)


def test_a_list_is_read_where_one_is_asked_for() -> None:
    assert parse_list(b'[1, {"a": []}]', "f.json") == [1, {"a": []}]
    for text, problem in (
        (b'{"a": 1}', "it must be a list, found `{'a': 1}`"),
        (b'[{"a": 1, "a": 2}]', "the key `a` occurs twice"),
        (b"[NaN]", "`NaN` is not a JSON number"),
        (b"[" * 99 + b"]" * 99, f"more than {MAX_DEPTH} levels"),
    ):
        with pytest.raises(CheckpointError) as caught:
            parse_list(text, "f.json", CheckpointError)
        assert "`f.json` is not usable JSON: " in str(caught.value)
        assert problem in str(caught.value)


def test_hostile_names_are_shown_escaped_and_short() -> None:
    key = "\\u001b[31m" + "x" * 10_000
    with pytest.raises(ModelError) as caught:
        parse_object(f'{{"{key}": 1, "{key}": 2}}'.encode(), "f.json")
    assert "\x1b" not in str(caught.value)
    assert "\\x1b" in str(caught.value)
    assert len(str(caught.value)) < 300


class Part(Struct, forbid_unknown_fields=True):
    """A record, and what may be wrong with it."""

    name: str
    sizes: list[Annotated[int, Meta(ge=0)]] = []
    tables: dict[str, dict[str, bool]] = {}
    maybe: int | str | None = None
    word: Literal["no", "it's"] = "no"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1], "`x` must be an object, found `[1]`"),
        ({}, "`x` needs `name`"),
        ({"name": "a", "nam": 1}, "`x` has an unknown field `nam`"),
        ({"name": None}, "`x`: `name` must be a string, found `None`"),
        ({"name": "a", "sizes": [1, 2.5]}, "`x`: `sizes[1]` must be an integer, found `2.5`"),
        ({"name": "a", "sizes": [1, -2]}, "`x`: `sizes[1]` must be an integer >= 0, found `-2`"),
        (
            {"name": "a", "tables": {"b": {"c": True}, "d": {"e": True, "f": 1}}},
            "`x`: `tables.d.f` must be true or false, found `1`",
        ),
        (
            {"name": "a", "maybe": {}},
            "`x`: `maybe` must be an integer or a string, found `{}`",
        ),
        ({"name": "a", "word": "oh's - at `$.no"}, '`x`: `word` cannot be `"oh\'s - at `$.no"`'),
    ],
)
def test_a_record_is_refused_by_the_path_of_its_fault(value: object, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        record_of(value, Part, "`x`", CheckpointError, hint="save it again")
    assert (caught.value.message, caught.value.hint) == (problem, "save it again")


def test_a_record_is_made_of_what_was_parsed() -> None:
    part = record_of({"name": "a", "sizes": [1], "maybe": "b"}, Part, "`x`")
    assert part == Part("a", [1], {}, "b")
