"""Bodies of all protocols: nulls, bounds, refusals and descriptions; and where answers end."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import request_fields
from gptrs_serve.fields import decoded, field_rows, known_type
from gptrs_serve.openapi import ROUTES, openapi_page
from gptrs_serve.problems import RequestError
from serve.clients import http, post

USER = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    "ResponsesBody": {"input": "hi"},
    "InputTokensBody": {"input": "hi"},
    "MessagesBody": {"messages": USER, "max_tokens": 3},
    "CountBody": {"messages": USER},
    "OllamaChatBody": {"model": "m"},
    "GenerateBody": {"model": "m"},
    "EmbedBody": {"model": "m", "input": "a"},
    "OneEmbeddingBody": {"model": "m", "prompt": "a"},
    "ShowBody": {},
    "TranscriptionBody": {"file": "a"},
    "TranslationBody": {"file": "a"},
    "TextsBody": {"inputs": "a"},
    "TextsRankBody": {"query": "a"},
    "InfillBody": {"input_prefix": "a", "input_suffix": "b"},
    "PredictBody": {"prompt": "a"},
    "TemplateBody": {"messages": USER},
    "ChatBody": {"messages": USER},
    "CompletionBody": {"prompt": "a"},
    "EmbeddingBody": {"input": "a"},
    "RerankBody": {"query": "a", "documents": ["b"]},
    "ScoreBody": {"text_1": "a", "text_2": "b"},
    "ClassifyBody": {"input": "a"},
    "TagBody": {"input": "a"},
    "TokenizeBody": {},
    "InterventionBody": {},
    "DetokenizeBody": {"tokens": [1]},
    "LoadBody": {"model": "m"},
    "UnloadBody": {"model": "m"},
    "LoadAdapterBody": {"lora_name": "a", "lora_path": "b"},
    "UnloadAdapterBody": {"lora_name": "a"},
}
BODIES = {row.body.__name__: row.body for row in ROUTES.values() if row.body is not None}


def read(name: str, /, **fields: object) -> Any:
    return decoded(json.dumps({**REQUIRED[name], **fields}).encode(), BODIES[name])


def test_the_page_of_fields_is_current():
    written = request_fields.PAGE.read_text(encoding="utf-8")
    assert written == request_fields.page_text(), "run `python tools/request_fields.py`"


def test_every_body_is_tried():
    assert BODIES.keys() == REQUIRED.keys()


@pytest.mark.parametrize("name", REQUIRED)
def test_each_null_is_a_field_that_is_left_out(name):
    optional = [field for field in BODIES[name].__struct_fields__ if field not in REQUIRED[name]]
    for field in optional:
        assert read(name, **{field: None}) == read(name)
    assert read(name, **dict.fromkeys([*optional, "unknown"])) == read(name)


@pytest.mark.parametrize("name", REQUIRED)
def test_each_field_says_what_becomes_of_it(name):
    for row in field_rows(BODIES[name]):
        assert row.about, row.name
        if row.state == "refused":
            with pytest.raises(RequestError) as caught:
                read(name, **{row.name: 1})
            assert caught.value.message.endswith(row.about)
            assert caught.value.param == row.name
    with pytest.raises(RequestError, match="`unknown` is not a parameter"):
        read(name, unknown=1)


def literals(kind: Any) -> list[object]:
    """The values that a type lists."""
    within = [*getattr(kind, "types", ()), *([kind.type] if hasattr(kind, "type") else ())]
    return [*getattr(kind, "values", ()), *(value for each in within for value in literals(each))]


@pytest.mark.parametrize("name", REQUIRED)
def test_what_asks_for_nothing_is_taken_and_what_would_ask_is_not(name):
    rows = {row.name: row for row in field_rows(BODIES[name])}
    fields: Any = known_type(BODIES[name])
    for field in fields.fields:
        if rows[field.encode_name].state != "no effect":
            continue
        values = literals(field.type)
        for value in values:
            read(name, **{field.encode_name: value})
        if values and all(isinstance(value, str) for value in values):
            with pytest.raises(RequestError) as caught:
                read(name, **{field.encode_name: "something else"})
            assert rows[field.encode_name].about in caught.value.message


@pytest.mark.parametrize("name", REQUIRED)
def test_the_description_takes_what_the_server_takes(name):
    page = openapi_page()
    schema = {"$ref": f"#/components/schemas/{name}", "components": page["components"]}
    optional = [field for field in BODIES[name].__struct_fields__ if field not in REQUIRED[name]]
    jsonschema.validate({**REQUIRED[name], **dict.fromkeys(optional)}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**REQUIRED[name], "unknown": 1}, schema)


def test_the_stop_text_is_part_of_an_answer_that_asks_for_it(talking):
    address, _ = talking
    body = {"model": "say", "messages": USER, "temperature": 0, "stop": ["the"]}
    for kept, text in ((None, "Hello "), (False, "Hello "), (True, "Hello the")):
        asked = {**body, "include_stop_str_in_output": kept}
        (choice,) = post(address, "/v1/chat/completions", asked).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        told = http.post(f"{address}/v1/chat/completions", json={**asked, "stream": True}).text
        events = [json.loads(line.removeprefix("data: ")) for line in told.split("\n\n")[:-2]]
        parts = [each["choices"][0]["delta"].get("content", "") for each in events]
        assert "".join(parts) == text
