"""OpenAI's Responses API: the order of its events, items, tools, and what is kept."""

from __future__ import annotations

import json

import pytest

from gptrs_serve.dialects import responses
from serve.clients import http
from serve.talkers import HELLO, PARAMETERS, SAID, THOUGHTS

pytest.importorskip("llguidance", reason="llguidance is not installed")
TOOLS = [{"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS}]
ASKED = {"model": "agent", "input": "hi", "temperature": 0, "tools": TOOLS}


def post(talking, body, path="/v1/responses"):
    return http.post(f"{talking[0]}{path}", json=body)


def events(talking, body):
    text = post(talking, {**body, "stream": True}).text
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def items(response):
    """The output without what is new each time."""
    return [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in response["output"]
    ]


ITEM = [
    "response.output_item.added",
    "response.content_part.added",
    "response.{}.delta",
    "response.{}.done",
    "response.content_part.done",
    "response.output_item.done",
]
ORDER = [
    "response.created",
    "response.in_progress",
    *(name.format("reasoning_text") for name in ITEM),
    *(name.format("output_text") for name in ITEM),
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
]


def test_events_come_in_their_order_and_make_the_whole_response(talking):
    found = events(talking, ASKED)
    names = [event["type"] for event in found]
    assert [n for at, n in enumerate(names) if at == 0 or names[at - 1] != n] == ORDER
    assert found[0]["response"]["output"] == []
    last, whole = found[-1]["response"], post(talking, ASKED).json()
    assert items(last) == items(whole)
    thoughts, said, call = whole["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": THOUGHTS}]
    assert said["content"][0]["text"] == SAID
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"a": 1}')
    assert {item["status"] for item in whole["output"]} == {"completed"}
    for kind, index in (("reasoning_text", 0), ("output_text", 1)):
        deltas = [event for event in found if event["type"] == f"response.{kind}.delta"]
        assert len(deltas) > 2
        assert {event["output_index"] for event in deltas} == {index}
        assert {event["item_id"] for event in deltas} == {last["output"][index]["id"]}
        assert (
            "".join(event["delta"] for event in deltas)
            == whole["output"][index]["content"][0]["text"]
        )
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_an_answer_that_is_cut_is_incomplete(talking):
    body = {"model": "say", "input": "hi", "temperature": 0, "max_output_tokens": 3}
    whole = post(talking, body).json()
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert HELLO.startswith(whole["output"][0]["content"][0]["text"])
    assert events(talking, body)[-1]["type"] == "response.incomplete"


def test_an_error_in_a_stream_is_a_response_that_failed(talking, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr(responses.ResponseWriter, "end", broken)
    last = events(talking, {"model": "say", "input": "hi", "temperature": 0})[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"


HISTORY = [
    {"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
    {"role": "user", "content": "hi"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "so", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 2}'},
    {"type": "function_call_output", "call_id": "c1", "output": "seven"},
]  # fmt: skip


def test_the_items_of_a_turn_become_one_message(talking):
    body = {"model": "lists", "input": HISTORY, "instructions": "first", "tools": TOOLS}
    count = post(talking, body, "/v1/responses/input_tokens").json()["input_tokens"]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 2}'}}
    messages = [
        {"role": "system", "content": "first\n\nbe brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "reasoning_content": "hm", "content": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seven"},
    ]
    tool = {"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}
    fields = {"model": "lists", "messages": messages, "tools": [tool]}
    told = post(talking, fields, "/tokenize").json()
    text = talking[1]["lists"].tokenizer.decode(told["tokens"], special=True)
    assert text == (
        "[1]<system>first\n\nbe brief<user>hi<assistant>hmso<tool_call>f2<tool>seven<answer>"
    )
    assert told["count"] == count


def test_messages_of_one_role_stay_apart(talking):
    said = [{"role": "user", "content": text} for text in ("hi", "there")]
    body = {"model": "lists", "input": said}
    count = post(talking, body, "/v1/responses/input_tokens").json()["input_tokens"]
    tokenizer = talking[1]["lists"].tokenizer
    assert count == len(tokenizer.encode("<user>hi<user>there<answer>", special=False))
    body = {"model": "lists", "messages": said}
    counted = post(talking, body, "/v1/messages/count_tokens").json()["input_tokens"]
    assert counted == count
    made = post(talking, {**body, "stream": False, "options": {"num_predict": 1}}, "/api/chat")
    assert made.json()["prompt_eval_count"] == count


def test_a_response_is_gone_on_with_as_if_all_had_been_sent(talking):
    first = post(talking, {"model": "lists", "input": "hi", "max_output_tokens": 4}).json()
    text = first["output"][0]["content"][0]["text"]
    body = {"model": "lists", "input": "more", "previous_response_id": first["id"],
            "max_output_tokens": 1}  # fmt: skip
    second = post(talking, body).json()
    sent = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "more"},
    ]
    whole = post(talking, {"model": "lists", "input": sent, "max_output_tokens": 1}).json()
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    third = {**body, "previous_response_id": second["id"]}
    assert post(talking, third).json()["usage"]["input_tokens"] > whole["usage"]["input_tokens"]
    url = f"{talking[0]}/v1/responses/{second['id']}/input_items"
    listed = http.get(url).json()
    said = [item["content"][0]["text"] for item in listed["data"]]
    assert said == ["more", text, "hi"]
    newest, *_, oldest = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (newest, oldest, False)
    some = http.get(url, params={"order": "asc", "limit": 1, "after": oldest}).json()
    assert (some["data"][0]["content"][0]["text"], some["has_more"]) == (text, True)
    for name, value in (("limit", "0"), ("order", "up"), ("after", "none")):
        refused = http.get(url, params={name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert http.get(url.replace("resp_", "resp_x")).status_code == 404
    url = f"{talking[0]}/v1/responses/{first['id']}"
    assert http.get(url, params={"stream": "true"}).json()["error"]["param"] == "stream"
    assert http.post(f"{url}/cancel").status_code == 400
    assert http.get(url).json() == first
    assert http.delete(url).json()["deleted"] is True
    assert http.get(url).status_code == http.delete(url).status_code == 404
    assert post(talking, body).json()["error"]["code"] == "previous_response_not_found"


def test_what_is_kept_is_bounded_and_what_is_not_to_be_kept_is_not(talking, monkeypatch):
    body = {"model": "say", "input": "hi", "max_output_tokens": 2}
    private = post(talking, {**body, "store": False}).json()
    url = f"{talking[0]}/v1/responses/"
    assert http.get(url + private["id"]).status_code == 404
    kept = post(talking, body).json()
    monkeypatch.setattr(responses, "MOST_KEPT_BYTES", 4000)
    names = [post(talking, {**body, "input": "x" * 500}).json()["id"] for _ in range(4)]
    assert http.get(url + kept["id"]).status_code == 404
    assert http.get(url + names[0]).status_code == 404
    assert http.get(url + names[-1]).status_code == 200


def test_a_custom_tool_takes_a_text(talking):
    tools = [{"type": "custom", "name": "write", "description": "d"}]
    choice = {"type": "custom", "name": "write"}
    body = {"model": "agent", "input": "hi", "tools": tools, "tool_choice": choice,
            "max_output_tokens": 60, "temperature": 1}  # fmt: skip
    found = events(talking, body)
    names = [event["type"] for event in found]
    at = names.index("response.custom_tool_call_input.delta")
    assert names[at : at + 3] == [
        "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]  # fmt: skip
    (item,) = [one for one in found[-1]["response"]["output"] if one["type"] == "custom_tool_call"]
    assert (item["name"], item["input"]) == ("write", found[at]["delta"])
    history = [
        {"role": "user", "content": "hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "write", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
    ]
    assert post(talking, {**body, "input": history, "tool_choice": "none"}).status_code == 200


def test_a_schema_is_kept(talking):
    form = {"type": "json_schema", "name": "x", "schema": PARAMETERS, "strict": True}
    body = {"model": "lists", "input": "hi", "text": {"format": form}, "temperature": 1,
            "max_output_tokens": 120}  # fmt: skip
    made = next(made for made in (post(talking, body).json() for _ in range(20))
                if made["status"] == "completed")  # fmt: skip
    assert isinstance(json.loads(made["output"][0]["content"][0]["text"])["a"], int)
    assert made["text"]["format"] == {**form, "description": None}


def test_the_oldest_turns_are_left_out_where_input_exceeds_the_context(talking):
    limit = talking[1]["lists"].causal_lm().context_length
    system = {"role": "developer", "content": "s" * 50}
    turns = [
        [{"role": "user", "content": str(n) * 100}, {"role": "assistant", "content": "a" * 100}]
        for n in range(9)
    ]
    last = [{"role": "user", "content": "last"}]

    def body(first, **more):
        said = [each for turn in turns[first:] for each in turn]
        return {"model": "lists", "input": [system, *said, *last], **more}

    def count(first, **more):
        answer = post(talking, body(first, **more), "/v1/responses/input_tokens")
        # Input that is clearly too long is refused before it is counted.
        return answer.json().get("input_tokens", limit + 1)

    assert post(talking, body(0)).status_code == 400
    for most in (1, 300, 5000):
        room = limit - min(most, limit // 2)
        first = next(n for n in range(10) if count(n) <= room)
        assert first > 0
        asked = body(0, truncation="auto", max_output_tokens=most)
        made = post(talking, {**asked, "max_output_tokens": most})
        assert made.status_code == 200, made.text
        assert made.json()["usage"]["input_tokens"] == count(first)
        assert made.json()["truncation"] == "auto"
    assert count(0, truncation="auto") == count(next(n for n in range(10) if count(n) < limit))
    # What fits is read whole; a last turn that does not fit is refused, whatever is left out.
    fits = post(talking, body(8, truncation="auto", max_output_tokens=2)).json()
    assert fits["usage"]["input_tokens"] == count(8)
    last = [{"role": "user", "content": "l" * 2000}]
    for more in ({}, {"max_output_tokens": 4}):
        assert post(talking, body(0, truncation="auto", **more)).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "of the type 'web_search'; this server has"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0]", "`name`"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "'item_reference'; there"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0]", "content"),
        ({"input": []}, "input", "length >= 1"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "has no message"),
        ({"conversation": "c"}, "conversation", "use `previous_response_id`"),
        ({"background": True}, "background", "never computed in the background"),
        ({"truncation": "none"}, "truncation", "Invalid enum value"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]", "Invalid enum value"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "not among the tools"),
        ({"input": [{"role": "user", "content": [{"type": "input_image",
          "image_url": "https://example.org/a.png"}]}]}, "messages", "image"),
    ],
)  # fmt: skip
def test_refusals(talking, fields, param, message):
    answer = post(talking, {**ASKED, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert param is None or error["param"] == param or "image" in message
