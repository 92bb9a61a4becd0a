"""A tokenizer.json that may be hostile: refused in bounded time, whatever the library does."""

from __future__ import annotations

import json

import pytest

from gptrs.errors import ModelError, UsageError
from gptrs.runtime.tokenizer import TextTokenizer
from gptrs.runtime.tokenizer_file import read_tokenizer, without_panics


class PanicException(BaseException):
    """What a panic in Rust looks like from Python."""


def _panic() -> None:
    raise PanicException("called `Option::unwrap()` on a `None` value\nat line 3")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _fail() -> None:
    raise Exception("no such token")


def _complain() -> None:
    raise UsageError("not Unicode")


@pytest.mark.parametrize(
    ("work", "reason"),
    [(_panic, r"called `Option::unwrap\(\)` on a `None` value;"), (_fail, "no such token")],
)
def test_what_the_library_raises_is_an_error_of_the_file(work, reason):
    with pytest.raises(ModelError, match=rf"`t\.json` is not a tokenizer file: {reason}"):
        without_panics(work, "t.json")


def test_other_errors_and_interrupts_stay_what_they_are():
    with pytest.raises(KeyboardInterrupt):
        without_panics(_interrupt, "t.json")
    with pytest.raises(UsageError):
        without_panics(_complain, "t.json")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "EOF"),
        (b"\xff", "expected value"),
        (b"[" * 100_000, "nested more than 16 levels deep"),
        (b"[" + b"[]," * 4_000_001, "more than 4000000 values"),
        (b'{"a": ' + b"1" * 500 + b"}", "more than 400 digits"),
        (b"{}", "is not a tokenizer file"),
    ],
)
def test_malformed_files(data, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        read_tokenizer(data, "t.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_expression_that_never_comes_to_an_end_is_given_up():
    tokenizer = {
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(a+)+$"},
            "behavior": "Isolated",
            "invert": False,
        },
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    found = TextTokenizer(json.dumps(tokenizer).encode(), "t.json")
    with pytest.raises(ModelError, match="retry-limit-in-match over"):
        found.encode("a" * 60 + "!")


@pytest.mark.parametrize("nested", [False, True])
def test_a_template_that_repeats_the_text_is_refused(nested):
    """Cut, it would take memory without bound."""

    def tokenizer(count: int) -> bytes:
        template = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * count,
            "pair": [],
            "special_tokens": {},
        }
        processor = {"type": "Sequence", "processors": [template]} if nested else template
        model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
        return json.dumps({"post_processor": processor, "model": model}).encode()

    assert TextTokenizer(tokenizer(1), "t.json").encode_within("a", 1) == [0]
    with pytest.raises(ModelError, match="a post-processor that repeats the text 50 times"):
        TextTokenizer(tokenizer(50), "t.json")
