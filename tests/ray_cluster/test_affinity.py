"""Requests that share the beginning of a prompt, and who has read it; no cluster is needed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from gptrs_ray.serving import affinity
from gptrs_ray.serving.affinity import (
    MOST_AHEAD,
    Readers,
    fields_of,
    is_overloaded,
    mark_of,
)

LONG = "def add(a, b):\n    return a + b\n" * 40


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "temperature": 0, **fields}).encode()


def beginnings(data: bytes) -> tuple[bytes, ...]:
    return affinity.beginnings(fields_of(data))


def response_of(path: str, data: bytes) -> str:
    return affinity.response_of(path, fields_of(data))


def shared(one: bytes, other: bytes) -> int:
    pairs = zip(beginnings(one), beginnings(other), strict=False)
    return sum(a == b for a, b in pairs)


def test_a_conversation_that_goes_on_shares_all_of_its_earlier_turns():
    asked = [{"role": "user", "content": LONG}]
    first = body(messages=asked)
    asked += [{"role": "assistant", "content": LONG}, {"role": "user", "content": "and?"}]
    later = body(messages=asked, seed=7)
    assert shared(first, later) == len(beginnings(first)) > 3
    assert len(beginnings(later)) > len(beginnings(first))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prompt": LONG}, {"prompt": LONG, "model": "n"}),
        ({"prompt": LONG}, {"prompt": f"# {LONG}"}),
        ({"messages": [LONG]}, {"messages": [LONG], "tools": [{"type": "function"}]}),
        ({"input": "short"}, {"input": "short"}),
    ],
)
def test_prompts_that_begin_otherwise_share_nothing(one, other):
    assert shared(body(**one), body(**other)) == 0


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b'{"prompt": 1', b'{"texts": ["a"]}'])
def test_what_has_no_prompt_has_no_beginnings(data):
    assert beginnings(data) == ()


def test_the_reader_of_the_longest_beginning_is_found_among_those_that_are_left():
    readers = Readers[str]()
    readers.note([b"a", b"b"], "one")
    readers.note([b"a", b"c", b"d"], "two")
    assert readers.reader([b"a", b"b", b"e"], ["one", "two"]) == "one"
    assert readers.reader([b"a", b"f"], ["one", "two"]) == "two"
    assert readers.reader([b"a", b"c"], ["one"]) is None
    assert readers.reader([b"g"], ["one", "two"]) is None


def test_what_was_asked_long_ago_is_forgotten_longest_beginnings_first():
    readers = Readers[str](most=3)
    readers.note([b"a", b"b"], "one")
    readers.note([b"c", b"d"], "two")
    assert readers.reader([b"a", b"b"], ["one"]) == "one"
    assert readers.reader([b"b"], ["one"]) is None


def test_a_replica_far_ahead_of_another_is_overloaded():
    assert is_overloaded("one", {"one": MOST_AHEAD, "two": 0})
    assert not is_overloaded("one", {"one": MOST_AHEAD, "two": 1})
    assert not is_overloaded("one", {"two": 1})
    assert not is_overloaded("one", {})


def test_a_stored_response_is_named_by_a_path_or_a_body():
    assert response_of("/v1/responses/resp_1", b"") == "resp_1"
    assert response_of("/v1/responses", body(previous_response_id="resp_2")) == "resp_2"
    for other in (body(previous_response_id=None), body(previous_response_id=7), body(), b"{"):
        assert response_of("/v1/responses", other) == ""
    assert mark_of("one") != mark_of("two")
