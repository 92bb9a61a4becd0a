"""A tokenizer.json that may be hostile: refused in bounded time, whatever the library does."""

from __future__ import annotations

import base64
import json
import math

import pytest

from gptrs.errors import ModelError, UsageError
from gptrs.runtime.tokenization.tokenizer import TextTokenizer
from gptrs.runtime.tokenization.tokenizer_file import read_tokenizer, without_panics
from gptrs.runtime.tokenization.tokenizer_growth import MOST_GROWTH, growth


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


MODEL = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def _charsmap(longest: int) -> str:
    return base64.b64encode(bytes(4) + b"short\0" + b"x" * longest + b"\0").decode()


@pytest.mark.parametrize(
    ("part", "steps", "bound"),
    [
        ("normalizer", {"normalizers": [DOUBLING] * 50}, "1.13e\\+15"),
        ("pre_tokenizer", {"pretokenizers": [BYTES] * 50}, "1.13e\\+15"),
        ("decoder", {"decoders": [DOUBLING] * 50}, "1.13e\\+15"),
        ("normalizer", {"normalizers": [{"type": "Prepend", "prepend": "x" * 9000}]}, "9e\\+03"),
        (
            "normalizer",
            {
                "normalizers": [
                    {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "é" * 5000}
                ]
            },
            "1e\\+04",
        ),
    ],
)
def test_steps_that_make_texts_longer_and_longer_are_refused(part, steps, bound):
    few = {key: each[:2] for key, each in steps.items() if len(each) > 2}
    if few:
        data = json.dumps({part: {"type": "Sequence", **few}, "model": MODEL}).encode()
        read_tokenizer(data, "t.json")
    data = json.dumps({part: {"type": "Sequence", **steps}, "model": MODEL}).encode()
    with pytest.raises(ModelError, match=f"may make {bound} bytes of one, more than 8192"):
        read_tokenizer(data, "t.json")


def test_a_character_map_is_bounded_by_its_longest_string():
    assert growth({"type": "Precompiled", "precompiled_charsmap": _charsmap(33)}) == 33
    assert growth({"type": "Precompiled", "precompiled_charsmap": _charsmap(10**5)}) == 10**5
    assert growth({"type": "Precompiled", "precompiled_charsmap": "?"}) == math.inf


def test_the_steps_that_models_come_with_are_within_the_bound():
    """Those of ALBERT, the longest list there is, and of Llama 2."""
    albert = [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        {"type": "Precompiled", "precompiled_charsmap": _charsmap(33)},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    llama = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    spaces = growth({"type": "Metaspace"})
    assert growth({"type": "Sequence", "normalizers": albert}) * spaces < MOST_GROWTH
    assert growth({"type": "Sequence", "normalizers": llama}) == 12


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
        return json.dumps({"post_processor": processor, "model": MODEL}).encode()

    assert TextTokenizer(tokenizer(1), "t.json").encode_within("a", 1) == [0]
    with pytest.raises(ModelError, match="a post-processor that repeats the text 50 times"):
        TextTokenizer(tokenizer(50), "t.json")
