"""Anthropic's Messages API: the order of its events, blocks, tools, counts and errors."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from gptrs_serve.app import Access
from gptrs_serve.dialects import anthropic
from serve.clients import http
from serve.conftest import serving
from serve.talkers import HELLO, PARAMETERS, SAID, THOUGHTS

pytest.importorskip("llguidance", reason="llguidance is not installed")
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "d", "input_schema": PARAMETERS,
        "cache_control": {"type": "ephemeral"}}  # fmt: skip
ASKED = {"model": "agent", "max_tokens": 200, "messages": [USER], "tools": [TOOL],
         "temperature": 0}  # fmt: skip


def post(talking, body, path="/v1/messages", **headers):
    return http.post(f"{talking[0]}{path}", json=body, headers=headers)


def events(talking, body):
    found = []
    for block in post(talking, {**body, "stream": True}).text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_events_come_in_their_order_and_make_the_whole_message(talking):
    found = events(talking, ASKED)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    names = [event["type"] for event in found]
    assert [n for at, n in enumerate(names) if at == 0 or names[at - 1] != n] == [
        "message_start", "ping", *block, *block, *block, "message_delta", "message_stop",
    ]  # fmt: skip
    whole = post(talking, ASKED).json()
    thoughts, said, call = whole["content"]
    assert thoughts == {"type": "thinking", "thinking": THOUGHTS, "signature": ""}
    assert said == {"type": "text", "text": SAID}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": 1})
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("tool_use", None)
    joined = ["", "", ""]
    for event in found:
        if event["type"] == "content_block_delta":
            (text,) = [value for key, value in event["delta"].items() if key != "type"]
            joined[event["index"]] += text
    assert joined == [THOUGHTS, SAID, '{"a": 1}']
    kinds = [event["content_block"]["type"] for event in found if "content_block" in event]
    assert kinds == ["thinking", "text", "tool_use"]
    start, end = found[0]["message"], found[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == (
        [],
        None,
        0,
    )
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    for usage in (whole["usage"], end["usage"]):
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 12
        assert usage["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("fields", "text", "reason", "stop"),
    [
        ({}, HELLO, "end_turn", None),
        ({"max_tokens": 4}, None, "max_tokens", None),
        ({"stop_sequences": ["zz", "there"]}, "Hello ", "stop_sequence", "there"),
    ],
)
def test_why_an_answer_ends(talking, fields, text, reason, stop):
    body = {**ASKED, "model": "say", "tools": [], **fields}
    made = post(talking, body).json()
    assert text is None or made["content"][0]["text"] == text
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, stop)
    assert events(talking, body)[-2]["delta"] == {"stop_reason": reason, "stop_sequence": stop}


def test_blocks_become_messages_of_one_turn_each(talking):
    body = {
        "model": "lists",
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "document", "title": "t", "source": {
                    "type": "text", "media_type": "text/plain", "data": "doc"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 2}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
                 "content": [{"type": "text", "text": "seven"}]},
                {"type": "text", "text": "and?"},
            ]},
        ],
        "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    }  # fmt: skip
    count = post(talking, body, "/v1/messages/count_tokens").json()["input_tokens"]
    told = (
        "[1]<system>be brief<user>hit\n\ndoc<assistant>hmso<tool_call>f2<tool>seven<user>and?!low"
        "<answer>"
    )
    tokenizer = talking[1]["lists"].tokenizer
    assert count == len(tokenizer.encode(told, special=False))
    usage = post(talking, {**body, "max_tokens": 1}).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


def test_a_message_of_the_assistant_at_the_end_is_gone_on_with(talking):
    begun = {"model": "lists", "messages": [USER, {"role": "assistant", "content": "so"}]}
    count = post(talking, begun, "/v1/messages/count_tokens").json()["input_tokens"]
    tokenizer = talking[1]["lists"].tokenizer
    assert count == len(tokenizer.encode("<user>hi<assistant>so", special=False))


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        ({"type": "any", "disable_parallel_tool_use": True}, ["tool_use"]),
        ({"type": "tool", "name": "f"}, ["tool_use"]),
        ({"type": "none"}, ["text"]),
    ],
)
def test_what_is_called_is_as_asked_for(talking, choice, kinds):
    body = {**ASKED, "model": "agent", "tool_choice": choice, "thinking": {"type": "disabled"}}
    made = post(talking, {**body, "temperature": 1}).json()
    found = [block["type"] for block in made["content"] if block["type"] != "thinking"]
    assert set(found) == set(kinds) or made["stop_reason"] == "max_tokens"


def test_a_schema_is_kept(talking):
    form = {"format": {"type": "json_schema", "schema": PARAMETERS}}
    body = {"model": "lists", "max_tokens": 120, "messages": [USER], "output_config": form}
    made = next(made for made in (post(talking, body).json() for _ in range(20))
                if made["stop_reason"] == "end_turn")  # fmt: skip
    assert isinstance(json.loads(made["content"][0]["text"])["a"], int)


@pytest.mark.parametrize(
    ("fields", "status", "kind", "message"),
    [
        ({"model": "x"}, 404, "not_found_error", "there is no model called 'x'"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "`max_tokens`: Expected `int` >= 1"),
        ({"max_tokens": None}, 400, "invalid_request_error", "required field `max_tokens`"),
        ({"mcp_servers": [1]}, 400, "invalid_request_error", "contacts no other servers"),
        ({"thread": {"type": "create"}}, 400, "invalid_request_error", "send all messages"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error",
         "tools[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url",
          "url": "https://example.org/a.png"}}]}]}, 400, "invalid_request_error", "image"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, 400,
         "invalid_request_error", "context_management"),
    ],
)  # fmt: skip
def test_errors_are_in_the_form_of_anthropic(talking, fields, status, kind, message):
    answer = post(talking, {**ASKED, **fields})
    assert answer.status_code == status
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", kind)
    assert message in found["error"]["message"]
    other = http.get(f"{talking[0]}/v1/messages").json()
    assert other["type"] == "error"


def test_an_error_in_a_stream_is_an_event(talking, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr(anthropic.MessageWriter, "end", broken)
    last = events(talking, {**ASKED, "model": "say", "tools": []})[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_models_are_listed_as_anthropic_has_them(talking):
    page = http.get(f"{talking[0]}/v1/models").json()
    names = [*talking[1]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (names[0], names[-1], False)
    for name, each in zip(names, page["data"], strict=True):
        assert (each["type"], each["id"], each["display_name"]) == ("model", name, name)
        assert datetime.fromisoformat(each["created_at"]).timestamp() == each["created"]


def test_a_key_is_read_where_anthropic_has_it(talking):
    say = talking[1]["say"]
    body = {"max_tokens": 2, "messages": [USER]}
    with serving({"say": say}, Access(keys=["secret"])) as (address, _):
        for headers, status in (
            ({"x-api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret"}, 200),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "secret", "Authorization": "Bearer wrong"}, 401),
            ({}, 401),
        ):
            answer = post((address,), body, **headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["type"] == "authentication_error"
