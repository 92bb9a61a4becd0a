"""Streaming: whole characters, the text of all tokens, and nothing past a stop string."""

from __future__ import annotations

import random

import pytest

from gptrs_runtime.generation.text_stream import IncrementalDecoder, StopFilter
from runtime.tiny_gpt2 import TEXTS, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


def stream(tokenizer, tokens: list[int]) -> list[str]:
    """The pieces of `tokens`, the last of them from `finish`."""
    decoder = IncrementalDecoder(tokenizer.decode)
    return [*(decoder.push(token) for token in tokens), decoder.finish()]


@pytest.mark.parametrize("text", [*TEXTS, "🇯🇵" * 5, "né ǆ ﷽ 𒐫", "a\u0301\u0301b", " \n\t x", ""])
def test_pieces_are_whole_characters_and_add_up(tokenizer, text):
    tokens = tokenizer.encode(text).ids
    pieces = stream(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_a_character_of_four_tokens_arrives_with_its_last_byte(tokenizer):
    tokens = tokenizer.encode("𒐫").ids
    assert len(tokens) == 4, "the test needs a character that the tokenizer has not learned"
    assert stream(tokenizer, tokens) == ["", "", "", "𒐫", ""]


def test_text_that_ends_within_a_character_shows_a_replacement(tokenizer):
    tokens = tokenizer.encode("ab𒐫").ids[:-1]
    pieces = stream(tokenizer, tokens)
    assert "".join(pieces[:-1]) == "ab"
    assert pieces[-1] == tokenizer.decode(tokens)[2:] == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("seed", range(20))
def test_random_tokens_add_up_to_their_text(tokenizer, seed):
    source = random.Random(seed)
    tokens = [source.randrange(tokenizer.get_vocab_size()) for _ in range(40)]
    assert "".join(stream(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_special_tokens_within_a_text_are_left_out(tokenizer):
    tokens = [*tokenizer.encode("the cat").ids, 0, *tokenizer.encode(" and").ids]
    assert "".join(stream(tokenizer, tokens)) == "the cat and"


def filtered(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What passes for each piece and at the end, and whether a stop string ended it."""
    stop = StopFilter(stops)
    passed = [stop.push(piece) for piece in pieces]
    return [*passed, stop.finish()], stop.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["END"], ["one ", "END two"], ["one ", "", ""], True),
        (["END"], ["one E", "N", "D two"], ["one ", "", "", ""], True),
        (["END"], ["one E", "N", "ter"], ["one ", "", "ENter", ""], False),
        (["END"], ["one E", "N"], ["one ", "", "EN"], False),
        (["b", "abc"], ["xabc"], ["xa", ""], True),
        (["abcd", "bc"], ["ab", "cx"], ["", "a", ""], True),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""], True),
        (["\n\n"], ["a\n", "\nb"], ["a", "", ""], True),
    ],
)
def test_nothing_from_a_stop_string_on_passes(stops, pieces, expected, stopped):
    assert filtered(stops, pieces) == (expected, stopped)


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_does_not_depend_on_where_pieces_end(seed):
    source = random.Random(seed)
    text = "".join(source.choice("abc") for _ in range(60))
    stops = ["".join(source.choice("abc") for _ in range(source.randint(2, 5))) for _ in range(2)]
    pieces, rest = [], text
    while rest:
        size = source.randint(1, 6)
        pieces.append(rest[:size])
        rest = rest[size:]
    # The first stop string to be complete ends the text; of two at once, the longer one.
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(found)[1]] if found else text
    for division in (pieces, list(text), [text]):
        passed, stopped = filtered(stops, division)
        assert ("".join(passed), stopped) == (expected, bool(found))
