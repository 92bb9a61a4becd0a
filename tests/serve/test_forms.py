"""Answers of a form: each is one of it, whatever a model of random weights would rather say."""

from __future__ import annotations

import json

import pytest

from gptrs.errors import UsageError
from gptrs.runtime.generation.batch import generate_several
from serve.test_server import post

pytest.importorskip("llguidance", reason="llguidance is not installed")
from gptrs.runtime.generation.grammar import Grammar

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "maximum": 9,
                   "minimum": 0}, "tags": {"type": "array", "maxItems": 2,
                   "items": {"type": "string", "maxLength": 3}}},
    "required": ["kind", "legs", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}  # fmt: skip
DRAWN = {"max_tokens": 80, "temperature": 1.0, "seed": 1}


def test_several_texts_keep_to_a_schema(model):
    form = Grammar(model, "json_schema", SCHEMA)
    for made in generate_several(model, "the cat", 6, form=form, **DRAWN):
        assert made.finish_reason == "eos"
        jsonschema.validate(json.loads(made.text), SCHEMA)


@pytest.mark.parametrize(
    ("form", "source", "fits"),
    [
        ("regex", "[a-c]{3}-[0-9]{2}", lambda text: text[3] == "-" and len(text) == 6),
        ("lark", 'start: "é" | "no"', lambda text: text in ("é", "no")),
    ],
)
def test_regex_and_grammar(model, form, source, fits):
    for made in generate_several(model, "x", 3, form=Grammar(model, form, source), **DRAWN):
        assert made.finish_reason == "eos"
        assert fits(made.text)


@pytest.mark.parametrize(
    ("form", "source"),
    [("json_schema", {"type": "nope"}), ("json_schema", "{"), ("regex", "("), ("lark", "start: x")],
)
def test_malformed_forms_are_refused(model, form, source):
    with pytest.raises(UsageError, match=f"the {form} cannot be used"):
        Grammar(model, form, source)


def test_a_chat_in_json(address):
    told = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "seed": 4, "max_tokens": 80}
    made = post(address, "/v1/chat/completions", {**body, "response_format": told}).json()
    for choice in made["choices"]:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    both = {**body, "response_format": {"type": "json_object"}, "regex": "a"}
    refused = post(address, "/v1/chat/completions", both)
    assert refused.status_code == 400
    assert "an answer has one form" in refused.json()["error"]["message"]
