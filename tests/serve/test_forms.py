"""Answers of a form: each is one of it, whatever a model of random weights would rather say."""

from __future__ import annotations

import json
import re
import socket

import httpx
import pytest

from gptrs.errors import UsageError
from gptrs.runtime.generation.batch import generate_several
from serve.test_server import post

pytest.importorskip("llguidance", reason="llguidance is not installed")
from gptrs.runtime.generation.grammar import MAX_FORM_BYTES, Grammar
from gptrs_serve.forms import MOST_SCHEMA

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
AS_JSON = {"Content-Type": "application/json"}
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


def nested(depth: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chained(length: int) -> dict:
    """Return a schema of references that each lead to the next."""
    steps = {
        f"a{n}": {"type": "array", "items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(length)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{length}": {"type": "null"}}}


RULES = "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(10_000)) + 'r10000: "a"\n'
"""Each rule leads to the next: llguidance takes 30 MB of stack."""


@pytest.mark.parametrize("depth", [200, 3000, 100_000])
def test_schemas_nested_deeply_are_refused(model, depth):
    for source in (nested(depth), '{"items":' * depth + "{}" + "}" * depth):
        with pytest.raises(UsageError, match="the json_schema cannot be used: "):
            Grammar(model, "json_schema", source)


@pytest.mark.parametrize(("form", "source"), [("json_schema", chained(2000)), ("lark", RULES)])
def test_long_chains_of_references_end_no_process(model, form, source):
    Grammar(model, form, source).new_processor(1)


@pytest.mark.parametrize("form", ["json_schema", "regex", "lark"])
def test_the_size_of_forms_is_bounded(model, form):
    with pytest.raises(UsageError, match=f"bytes, the limit is {MAX_FORM_BYTES}"):
        Grammar(model, form, " " * (MAX_FORM_BYTES + 1))


def test_no_file_and_no_address_of_a_schema_is_read(model, tmp_path, monkeypatch):
    (tmp_path / "null.json").write_text('{"type": "null"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/null.json"
        file = (tmp_path / "null.json").as_uri()
        for name in (file, "file:null.json", "null.json", "json-schema:///null.json", address):
            for schema in (
                {"$ref": name},
                {"$id": tmp_path.as_uri() + "/", "items": {"$ref": name}},
            ):
                with pytest.raises(UsageError, match="the json_schema cannot be used: "):
                    Grammar(model, "json_schema", schema)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_server_refuses_deep_schemas(address, depth):
    deep = '{"items":' * depth + "{}" + "}" * depth
    told = f'{{"type": "json_schema", "json_schema": {{"name": "deep", "schema": {deep}}}}}'
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "response_format": {told}}}'
    refused = httpx.post(f"{address}/v1/chat/completions", content=body, headers=AS_JSON)
    assert refused.status_code == 400, refused.text
    assert re.search("nested too deeply|recursion limit", refused.json()["error"]["message"])


@pytest.mark.parametrize(("form", "most"), [("regex", 8_192), ("grammar", 32_768)])
def test_a_server_bounds_what_a_form_costs(address, form, most):
    body = {"prompt": "a", "max_tokens": 1, form: "a" * (most + 1)}
    refused = post(address, "/v1/completions", body)
    assert refused.status_code == 400
    assert f"length <= {most}" in refused.json()["error"]["message"]


def test_a_server_bounds_what_a_schema_costs(address):
    long = {"required": ["x" * MOST_SCHEMA]}
    told = {"type": "json_schema", "json_schema": {"name": "long", "schema": long}}
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": told}
    refused = post(address, "/v1/chat/completions", body)
    assert refused.status_code == 400
    assert f"at most {MOST_SCHEMA} characters" in refused.json()["error"]["message"]


def test_a_server_outlives_a_schema_of_chained_references(address):
    told = {"type": "json_schema", "json_schema": {"name": "long", "schema": chained(900)}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    made = post(address, "/v1/chat/completions", {**body, "response_format": told})
    assert made.status_code == 200


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
