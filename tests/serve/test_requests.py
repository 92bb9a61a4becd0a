"""Bodies of requests: nulls, bounds, and what asks for nothing; and one way to tokens."""

from __future__ import annotations

import json

import msgspec
import pytest

from gptrs_serve import bodies
from gptrs_serve.bodies import decoded
from gptrs_serve.problems import RequestError

httpx = pytest.importorskip("httpx", reason="the HTTP client httpx is not installed")
USER = [{"role": "user", "content": "the cat"}]
REQUIRED = {
    "ChatBody": {"messages": USER},
    "CompletionBody": {"prompt": "a"},
    "EmbeddingBody": {"input": "a"},
    "RerankBody": {"query": "a", "documents": ["b"]},
    "ClassifyBody": {"input": "a"},
    "TagBody": {"input": "a"},
    "TokenizeBody": {},
    "DetokenizeBody": {"tokens": [1]},
}
FIELDS = [
    (name, field)
    for name, known in REQUIRED.items()
    for field in getattr(bodies, name).__struct_fields__
    if field not in known
]


def read(name, body):
    return decoded(json.dumps(body).encode(), getattr(bodies, name))


def test_every_body_is_tried():
    structs = {
        name
        for name, each in vars(bodies).items()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and name.endswith("Body")
    }
    assert structs == set(REQUIRED)


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_null_is_a_field_that_is_left_out(name, field):
    assert read(name, {**REQUIRED[name], field: None}) == read(name, REQUIRED[name])


def test_all_nulls_at_once_and_inside_are_left_out():
    for name, known in REQUIRED.items():
        nulls = {field: None for each, field in FIELDS if each == name}
        assert read(name, {**nulls, "unknown": None, **known}) == read(name, known)
    told = {"stream_options": {"include_usage": None, "include_obfuscation": None}}
    assert read("ChatBody", {"messages": USER, **told}).stream_options == bodies.StreamOptions()
    tool = {"type": "function", "function": {"name": "f", "strict": None, "description": None}}
    (found,) = read("ChatBody", {"messages": USER, "n": None, "tools": [tool]}).tools
    assert found.function.name == "f"


def test_a_null_that_is_data_stays():
    schema = {"enum": [None, 1], "default": None}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": None}}
    messages = [{"role": "assistant", "content": None, "x": {"y": None}}]
    found = read("ChatBody", {"messages": messages, "n": None, "response_format": form})
    assert found.response_format.json_schema.schema == schema
    assert found.messages == messages


def test_required_fields_and_their_entries_are_no_nulls():
    for name, known in REQUIRED.items():
        for field in known:
            with pytest.raises(RequestError, match=f"required field `{field}`"):
                read(name, {**known, field: None})
    with pytest.raises(RequestError, match=r"`stop\[0\]`"):
        read("ChatBody", {"messages": USER, "n": None, "stop": [None]})
    with pytest.raises(RequestError, match="`unknown` is not a parameter"):
        read("ChatBody", {"messages": USER, "n": None, "unknown": 1})


def post(address, path, body):
    return httpx.post(f"{address}{path}", json=body, timeout=60)


BOUNDS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "n": (1, 2),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-(2**63), 2**63 - 1, -1, 0),
    "stop": ("", [""], [], ["a", "", "b", "c"]),
    "logit_bias": ({}, {"5": -100}, {"5": 100}),
    "max_tokens": (1,),
    "max_completion_tokens": (1,),
    "top_k": (-1, 0, 1),
    "min_p": (0, 1),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "stream_options": ({}, {"include_usage": True, "continuous_usage_stats": False}),
    "metadata": ({}, {"a": "b"}),
    "user": ("", "x"),
    "store": (False,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "enable_thinking": (True, False),
    "add_generation_prompt": (True, False),
    "continue_final_message": (True, False),
    "logprobs": (True, False),
}


@pytest.mark.long
def test_each_bound_of_a_parameter_is_taken(address):
    refused = []
    for field, values in BOUNDS.items():
        for value in values:
            body = {"messages": USER, "max_tokens": 1, field: value}
            if field == "max_completion_tokens":
                del body["max_tokens"]
            answer = post(address, "/v1/chat/completions", body)
            if answer.status_code != 200:
                refused.append((field, value, answer.text))
    assert not refused


def test_a_nucleus_of_nothing_is_the_likeliest_token(address):
    asked = {"prompt": "the cat", "max_tokens": 8, "ignore_eos": True}
    greedy = post(address, "/v1/completions", {**asked, "temperature": 0}).json()
    found = post(address, "/v1/completions", {**asked, "temperature": 2, "top_p": 0}).json()
    assert found["choices"] == greedy["choices"]


def test_a_seed_below_zero_is_one_of_its_own(address):
    def text(seed):
        body = {"prompt": "the", "max_tokens": 12, "ignore_eos": True, "seed": seed}
        return post(address, "/v1/completions", body).json()["choices"][0]["text"]

    assert text(-1) == text(-1) == text(2**64 - 1)
    assert len({text(-1), text(1), text(-2)}) == 3
