"""A tokenizer.json that may be hostile: refused in bounded time, whatever the library does."""

from __future__ import annotations

import base64
import json
import math

import pytest

from gptrs.errors import ModelError, UsageError
from gptrs_runtime.tokenization import tokenizer_file
from gptrs_runtime.tokenization.tokenizer import TextTokenizer
from gptrs_runtime.tokenization.tokenizer_file import (
    MOST_GROWTH,
    MOST_GROWTH_OF_A_STEP,
    grown,
    growth,
    read_tokenizer,
    without_panics,
)


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
    with pytest.raises(ModelError, match=rf"in `t\.json` cannot be read: {reason}"):
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
        (b"{}", "cannot be read"),
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


def with_steps(part: str, *steps: object) -> bytes:
    keys = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    sequence = {"type": "Sequence", keys[part]: steps}
    return json.dumps({part: sequence, "model": MODEL}).encode()


def replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    ("part", "steps", "reason"),
    [
        ("normalizer", [DOUBLING] * 14, r"may make 1.64e\+04 bytes of one, more than 8192"),
        ("normalizer", [{"type": "NFC"}] * 17, "has 17 steps in a row, more than 16"),
        ("pre_tokenizer", [BYTES] * 14, r"may make 1.64e\+04 bytes of one, more than 8192"),
        ("decoder", [DOUBLING] * 50, "has 50 steps in a row, more than 16"),
        ("normalizer", [{"type": "Prepend", "prepend": "x" * 64}], "may make 65 .*, more than 64"),
        ("normalizer", [replaced({"Regex": "x*"}, "é" * 32)], "may make 65 .*, more than 64"),
        ("normalizer", [replaced({"String": "a"}, "b" * 8191)], r"8.19e\+03 .*, more than 64"),
    ],
)
def test_steps_that_make_texts_longer_and_longer_are_refused(part, steps, reason):
    few = [step for step in steps if step in (DOUBLING, BYTES)][:13]
    read_tokenizer(with_steps(part, *few), "t.json")
    with pytest.raises(ModelError, match=reason):
        read_tokenizer(with_steps(part, *steps), "t.json")


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [replaced({"Regex": "a"}, "b" * 60), pytest.param(DOUBLING, marks=pytest.mark.exhaustive)],
)
def test_what_steps_make_of_a_text_is_bounded_before_it_is_made(step):
    """In the second case by trying them: only a text of `a` grows."""
    steps = [step] * (13 if step is DOUBLING else 2)
    found = TextTokenizer(with_steps("normalizer", *steps), "t.json")
    assert len(found.encode("a")) == 1
    text = "a" * 20_000
    with pytest.raises(UsageError, match="a text of 20000 characters is too long for this"):
        found.encode(text)
    if step is DOUBLING:
        assert len(found.encode("b" * 20_000)) == 1


@pytest.mark.parametrize("escape", [False, True])
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xffab", b"\0\0", b"\x01\0\0\0", None])
def test_a_map_that_says_it_is_longer_is_refused_before_the_library_sees_it(
    monkeypatch, data, escape
):
    charsmap = "?" if data is None else base64.b64encode(data).decode()
    step = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    text = with_steps("normalizer", step)
    if escape:
        text = text.replace(b'"precompiled', b'"\\u0070recompiled')
    monkeypatch.setattr(tokenizer_file, "Tokenizer", None)
    with pytest.raises(ModelError, match="a damaged `precompiled_charsmap`: it is shorter than"):
        read_tokenizer(text, "t.json")


def test_a_piece_that_looks_at_enormous_words_is_refused():
    def tokenizer(longest: int) -> bytes:
        model = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": longest}
        return json.dumps({"model": model}).encode()

    read_tokenizer(tokenizer(1000), "t.json")
    with pytest.raises(ModelError, match="`max_input_chars_per_word` of 1001, more than 1000"):
        read_tokenizer(tokenizer(1001), "t.json")


@pytest.mark.parametrize("letter", ["a", '"', "\\", "é", "\u0001"])
@pytest.mark.parametrize("typed", [True, False])
def test_a_long_piece_is_refused_before_the_library_recurs_for_it(
    monkeypatch: pytest.MonkeyPatch, letter: str, typed: bool
):
    def tokenizer(length: int) -> bytes:
        vocab = [["<unk>", 0.0], [letter * length, -1.0]]
        model = {"unk_id": 0, "vocab": vocab} | ({"type": "Unigram"} if typed else {})
        return json.dumps({"model": model}).encode()

    assert read_tokenizer(tokenizer(400), "t.json").get_vocab_size() == 2
    monkeypatch.setattr(tokenizer_file, "Tokenizer", None)
    with pytest.raises(ModelError, match=r"a piece of \d{4,} bytes, more than 1000; save it again"):
        read_tokenizer(tokenizer(1001), "t.json")
    spelled = tokenizer(1001).replace(b'"vocab"', b'"\\u0076ocab"')
    with pytest.raises(ModelError, match="bytes, more than 1000"):
        read_tokenizer(spelled, "t.json")


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
    assert grown(albert) * spaces < MOST_GROWTH
    assert max(map(growth, albert)) < MOST_GROWTH_OF_A_STEP
    assert grown(llama) == 12


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

    assert TextTokenizer(tokenizer(1), "t.json").encode_within("a", 1)[0] == [0]
    with pytest.raises(ModelError, match="a post-processor that repeats the text 50 times"):
        TextTokenizer(tokenizer(50), "t.json")


def test_a_panic_while_decoding_is_one_error_and_prints_nothing(capfd):
    model = {"type": "WordLevel", "vocab": {"": 0, "a": 1}, "unk_token": "a"}
    decoder = {"type": "Strip", "content": "x", "start": 0, "stop": 1}
    data = json.dumps({"model": model, "decoder": decoder}).encode()
    tokenizer = TextTokenizer(data, "t.json")
    assert tokenizer.decode([1]) == "a"
    with pytest.raises(ModelError, match=r"`t\.json`.*index out of bounds"):
        tokenizer.decode([0])
    assert capfd.readouterr().err == ""
