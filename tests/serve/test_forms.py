"""Answers of a form: each is one of it, whatever a model of random weights would rather say."""

from __future__ import annotations

import json
import logging
import re
import socket

import pytest

import fuzz_forms
from gptrs.errors import UsageError
from gptrs_runtime.generation.batch import generate_batch, generate_several
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.serving.engine import Engine

pytest.importorskip("llguidance", reason="llguidance is not installed")
from gptrs_runtime.generation import grammar, schema_combinations
from gptrs_runtime.generation.grammar import MAX_FORM_BYTES, Grammar
from gptrs_serve.forms import MOST_SCHEMA
from serve.clients import http, post

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
TOO_HARD = "(a?){2000}a{2000}"
"""llguidance gives up after a token, and then would let the text end."""
SOME_DIE = 'start: "x" A | "y" "y"\nA: /a+/ & /b+/\n'
"""No text begins with `x`, which shows when one has begun."""


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
        ("lark", 'root ::= "a" [0-4] end\nend ::= "!"', lambda text: re.fullmatch("a[0-4]!", text)),
    ],
)
def test_regex_and_grammar(model, form, source, fits):
    for made in generate_several(model, "x", 3, form=Grammar(model, form, source), **DRAWN):
        assert made.finish_reason == "eos"
        assert fits(made.text)


CALLED = {"json_schema": "json_schema", "regex": "regex", "lark": "grammar"}


@pytest.mark.parametrize(
    ("form", "source"),
    [("json_schema", {"type": "nope"}), ("json_schema", "{"), ("regex", "("), ("lark", "start: x")],
)
def test_malformed_forms_are_refused_by_the_name_of_the_option(model, form, source):
    with pytest.raises(UsageError, match=f"the {CALLED[form]} cannot be used"):
        Grammar(model, form, source)


def test_a_malformed_grammar_in_the_form_of_llama_cpp_is_refused(model):
    with pytest.raises(UsageError, match="the grammar in GBNF cannot be used"):
        Grammar(model, "lark", "root ::= (")


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


def either(name):
    options = [{"properties": {f"{name}{n}": {"const": n}}} for n in range(10)]
    return {"anyOf": options}


FILLED = {f"x{n}": {"type": "string", "description": "y" * 20} for n in range(200)}
"""More than 8,192 characters of properties."""
CROSSED = {
    "all": {"properties": FILLED, "allOf": [either(f"p{n}") for n in range(8)]},
    "within": {"properties": FILLED, "allOf": [{"properties": {"p": either(f"p{n}")}}
                                               for n in range(8)]},
    "beside": {"properties": FILLED, **either("p"), "$ref": "#/$defs/a0", "$defs": {
        f"a{n}": {"oneOf": either(f"p{n}")["anyOf"], "$ref": f"#/$defs/a{n + 1}"}
        for n in range(9)}},
    "behind": {"properties": FILLED, **chained(300), "$defs": {**chained(300)["$defs"], "a300": {
        "allOf": [either(f"p{n}") for n in range(8)]}}},
    "deep": {"properties": {**FILLED, "z": {"items": {"allOf": [either("p")] * 8}}}},
}  # fmt: skip
PLAIN = {
    "small": {"allOf": [either(f"p{n}") for n in range(3)]},
    "pydantic": {"properties": {**FILLED, "a": {"allOf": [{"$ref": "#/$defs/a"}], "default": 1}},
                 "$defs": {"a": {"properties": {f"p{n}": {"anyOf": [{"type": "null"}, either("p")]}
                                                for n in range(50)}}}},
    "pairs": {"properties": FILLED, "allOf": [either("p"), either("q")]},
    "recursive": {"properties": {**FILLED, "a": {"items": {"$ref": "#"}}}, "anyOf": [{}, {}]},
}  # fmt: skip


@pytest.mark.parametrize("name", CROSSED)
def test_schemas_that_combine_too_much_are_refused_before_they_take_memory(
    model, monkeypatch, name
):
    monkeypatch.setattr(grammar, "_new_matcher", lambda *_: pytest.fail("compiled"))
    text = json.dumps(CROSSED[name])
    for form, source in (("json_schema", text), ("lark", f"start: a\na: %json {text}\n")):
        with pytest.raises(UsageError, match=r"combine .* alternatives, and a schema of \d+ char"):
            Grammar(model, form, source)


@pytest.mark.parametrize("name", PLAIN)
def test_schemas_that_combine_little_are_taken(name):
    schema_combinations.require_few_combinations("json_schema", json.dumps(PLAIN[name]))


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
    refused = http.post(f"{address}/v1/chat/completions", content=body, headers=AS_JSON)
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


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize(
    ("form", "source", "text", "reason"),
    [
        ("regex", TOO_HARD, "a", "after 1 token: lexer error: too many expressions constructed"),
        ("lark", 'start: "xy" A\nA: /a+/ & /b+/\n', "xy", "the model has no token that may come"),
    ],
)
def test_a_form_that_is_given_up_is_an_error_of_its_text(
    model, capfd, form, source, text, reason, guesses
):
    made = generate(model, "x", form=Grammar(model, form, source), prompt_lookup=guesses, **DRAWN)
    assert (made.finish_reason, made.text) == ("error", text)
    assert f"the form cannot be kept after {len(text)} token" in made.error
    assert reason in made.error
    assert capfd.readouterr() == ("", "")


def test_other_texts_go_on(model):
    form = Grammar(model, "lark", SOME_DIE)
    alone = [generate(model, "x", form=form, **{**DRAWN, "seed": n}) for n in range(6)]
    assert {made.finish_reason for made in alone} == {"error", "eos"}
    for made in alone:
        assert (made.finish_reason, made.text) in [("error", "x"), ("eos", "yy")]
    drawn = {**DRAWN, "temperature": 9.0}
    several = generate_several(model, "x", 12, form=form, **drawn)
    assert {(made.finish_reason, made.text) for made in several} == {("error", "x"), ("eos", "yy")}
    prompts = ["x", "the cat", "a"] * 3
    batch = generate_batch(model, prompts, form=form, max_tokens=5, temperature=9.0, seed=2)
    assert [made.finish_reason == "error" for made in batch] == [made.text == "x" for made in batch]
    with Engine(model) as engine:
        stream = engine.submit("x", form=form, answers=12, **drawn)
        pieces = [piece for piece in stream if piece.finish_reason is not None]
    found = [stream.generations[piece.index] for piece in pieces]
    assert [made.text for made in stream.generations] == [made.text for made in several]
    assert [piece.error for piece in pieces] == [made.error for made in found]
    assert any(piece.error for piece in pieces)


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("regex", "a[^\\s\\S]"),
        ("regex", "[^\\s\\S]"),
        ("json_schema", "false"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}),
        ("lark", "start: A\nA: /a/ & /b/\n"),
    ],
)
def test_forms_that_no_text_has_are_refused(model, form, source):
    with pytest.raises(UsageError, match=f"the {CALLED[form]} cannot be used: "):
        Grammar(model, form, source)


@pytest.mark.parametrize("source", ["", "a*", "(b|)"])
def test_the_empty_text_may_be_of_a_form(model, source):
    ends = [
        generate(model, "x", form=Grammar(model, "regex", source), **{**DRAWN, "seed": n})
        for n in range(12)
    ]
    assert {made.finish_reason for made in ends} == {"eos"}
    assert any(made.text == "" for made in ends)
    assert all(re.fullmatch(source, made.text) for made in ends)


@pytest.mark.parametrize(
    ("source", "stop", "text", "reason"),
    [
        ("(ab){5}", "bab", "a", "error"),
        ("abé€ cd", "€", "abé", "error"),
        ("abé(€ cd)?", "€", "abé", "stop"),
        ("ab", "x", "ab", "eos"),
        ("ab", "ab", "", "error"),
        ("(ab)?", "b", "a", "error"),
        ("( a| b){4}", " a a", "", "error"),
    ],
)
def test_a_stop_string_ends_a_text_that_is_whole_or_is_an_error(model, source, stop, text, reason):
    form = Grammar(model, "regex", source)
    drawn = (
        generate(model, "x", form=form, stop=[stop], **{**DRAWN, "seed": seed})
        for seed in range(40)
    )
    made = next(each for each in drawn if (each.text, each.finish_reason) == (text, reason))
    assert (made.error or "").startswith("a stop string" if reason == "error" else "")


def test_a_text_that_shows_special_tokens_is_judged_with_them(tmp_path):
    model = fuzz_forms.tiny_models(tmp_path)[1]
    judge = Grammar(model, "lark", 'start: "t" <[1]> "h"\n').new_processor(0)
    assert [judge.is_whole(text) for text in ("t<s>h", "th", "t<s>", "t<s>h")] == [
        *(True, False, False, True)
    ]


def test_tokens_that_a_form_needs_may_be_suppressed(model):
    def ban(tokens, logits):
        logits[:] = -float("inf")
        return logits

    form = Grammar(model, "regex", "abc")
    made = generate(model, "x", form=form, logits_processors=[ban], **DRAWN)
    assert made.finish_reason == "error"
    assert made.error.endswith("the tokens that it allows are all suppressed")


def test_a_model_that_loves_white_space_ends_its_json(model):
    spaces = [token for text in " \n\t" for token in model.tokenizer.encode(text)]

    def wished(tokens, logits):
        logits[spaces] += 100
        return logits

    schema = {"properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    form = Grammar(model, "json_schema", {"type": "object", **schema})
    made = generate(model, "x", form=form, logits_processors=[wished], max_tokens=120)
    assert made.finish_reason == "eos"
    assert json.loads(made.text) == {"a": 1}
    assert "    " in made.text


def test_what_the_library_warns_of_is_logged(model, caplog, capfd):
    schema = {"x-guidance": {"lenient": True}, "type": "object", "dependencies": {"a": ["b"]}}
    with caplog.at_level(logging.WARNING, "gptrs"):
        Grammar(model, "json_schema", schema)
    assert 'the json_schema: Unimplemented keys: ["dependencies"]' in caplog.text
    assert capfd.readouterr() == ("", "")


def test_random_texts_of_random_forms(capsys):
    assert fuzz_forms.main(["--forms", "80", "--seed", "7", "--seconds", "60"]) == 0
    counts = dict(
        part.split()[::-1] for part in capsys.readouterr().out.splitlines()[0].split(", ")
    )
    assert min(int(counts[reason]) for reason in ("eos", "length", "error", "stop")) > 0


def test_the_fuzzer_tells_a_text_that_is_not_of_its_form(monkeypatch, capsys):
    def wrong(_):
        return fuzz_forms.Case("regex", "[ab]", lambda text: text == "a")

    monkeypatch.setattr(fuzz_forms, "random_case", wrong)
    assert fuzz_forms.main(["--forms", "20"]) == 1
    assert "regex '[ab]': ended by eos, and is not of the form: 'b'" in capsys.readouterr().out


HARD = {"prompt": "a", "max_tokens": 20, "regex": TOO_HARD}


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"prompt": ["a", "b"]}])
def test_a_server_refuses_a_form_that_is_given_up(address, more):
    refused = post(address, "/v1/completions", {**HARD, **more})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("no_token", "invalid_request_error")
    assert "too many expressions constructed" in error["message"]
    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "regex": TOO_HARD}
    refused = post(address, "/v1/chat/completions", {**said, "n": more.get("n", 1)})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_token")


def events(address, path, body):
    """The events of a stream but for the last, which says that it is done."""
    text = post(address, path, {**body, "stream": True}).text
    *told, done = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert done == "[DONE]"
    return [json.loads(event) for event in told]


@pytest.mark.parametrize("more", [{}, {"n": 4}, {"prompt": ["a", "b"]}])
def test_a_stream_tells_the_error_after_the_text(address, more):
    *told, last = events(address, "/v1/completions", {**HARD, **more})
    assert last["error"]["code"] == "no_token"
    texts = [choice["text"] for event in told for choice in event["choices"]]
    assert "".join(texts).startswith("a")
    reasons = [choice["finish_reason"] for event in told for choice in event["choices"]]
    assert set(reasons) <= {None}


def test_a_chat_tells_the_error_beside_answers_that_go_on(address):
    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "n": 8}
    form = 'start: "x" A | /y{50}/\nA: /a+/ & /b+/\n'
    *told, last = events(address, "/v1/chat/completions", {**said, "grammar": form, "seed": 1})
    assert "the form cannot be kept after 1 token" in last["error"]["message"]
    deltas = [choice["delta"].get("content") for event in told for choice in event["choices"]]
    assert "x" in deltas


@pytest.mark.parametrize("budget", ["MASK_SECONDS", "READ_SECONDS"])
def test_a_form_that_takes_too_much_time_ends_its_own_text_alone(model, monkeypatch, budget):
    """In an engine, where others wait for it; `generate` takes the time that it takes."""
    monkeypatch.setattr(f"gptrs_runtime.generation.grammar.{budget}", (-1.0, 0.0))
    form = Grammar(model, "regex", "[a-z ]+")
    with Engine(model) as engine:
        held = engine.submit("x", form=form, max_tokens=9, ignore_eos=True)
        free = engine.submit("x", max_tokens=9, ignore_eos=True)
        assert free.result()[0].finish_reason == "length"
        (made,) = held.result()
    assert made.finish_reason == "error"
    assert "s of processor time" in made.error
