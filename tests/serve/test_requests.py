"""Bodies of requests: nulls, bounds, and what asks for nothing; and one way to tokens."""

from __future__ import annotations

import json

import msgspec
import pytest

from gptrs_runtime.chat.conversation import conversation_of
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.load import load_model
from gptrs_serve import bodies, events
from gptrs_serve.fields import decoded, field_rows
from gptrs_serve.openapi import openapi_page
from gptrs_serve.problems import RequestError
from runtime.tiny_chat import save_tiny_chat
from serve.clients import http
from serve.conftest import serving

USER = [{"role": "user", "content": "the cat"}]
REQUIRED = {
    "ChatBody": {"messages": USER},
    "CompletionBody": {"prompt": "a"},
    "EmbeddingBody": {"input": "a"},
    "RerankBody": {"query": "a", "documents": ["b"]},
    "ScoreBody": {"text_1": "a", "text_2": ["b"]},
    "ClassifyBody": {"input": "a"},
    "TagBody": {"input": "a"},
    "TokenizeBody": {},
    "TemplateBody": {"messages": USER},
    "DetokenizeBody": {"tokens": [1]},
    "LoadBody": {"model": "a"},
    "UnloadBody": {"model": "a"},
    "LoadAdapterBody": {"lora_name": "a", "lora_path": "b"},
    "UnloadAdapterBody": {"lora_name": "a"},
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


def test_a_whole_number_may_have_a_point():
    sent = {"messages": USER, "max_tokens": 16.0, "stop_token_ids": [3.0], "temperature": 1.0}
    found = read("ChatBody", {**sent, "metadata": {"a": 2.0}})
    assert (found.max_tokens, found.stop_token_ids, found.metadata) == (16, [3], {"a": 2.0})
    assert type(found.temperature) is float
    assert read("CompletionBody", {"prompt": [[1.0, 2]]}).prompt == [[1, 2]]
    for wrong in (2.5, -1.0):
        with pytest.raises(RequestError, match="`max_tokens`"):
            read("ChatBody", {"messages": USER, "max_tokens": wrong})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            rb'{"prompt": "a\ud83d"}',
            r"a text ends inside an escape: \\ud83d is half of a character",
        ),
        (rb'{"prompt": "\ud83d\ude00", "stop": "\\\uDABC"}', r"escape: \\uDABC is half"),
        (rb'{"prompt": "\\ud83d', "Input data was truncated"),
        (rb'{"prompt": "\ud83d\ude00', "Input data was truncated"),
        (rb'{"prompt": "\ud83d and more text"}', "surrogate pair"),
    ],
)
def test_a_text_with_half_a_character_is_called_so(body, told):
    with pytest.raises(RequestError, match=f"the body is not JSON: .*{told}"):
        decoded(body, bodies.CompletionBody)


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
    return http.post(f"{address}{path}", json=body)


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
    "typical_p": (0.1, 1),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "repetition_penalty": (0.1, 9),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "stream_options": ({}, {"include_usage": True, "continuous_usage_stats": False}),
    "metadata": ({}, {"a": "b"}),
    "user": ("", "x"),
    "store": (False, True),
    "modalities": (["text"],),
    "service_tier": ("auto", "default", "flex", "priority"),
    "verbosity": ("medium",),
    "reasoning_effort": ("none", "medium"),
    "stop_token_ids": ([], [0, 299]),
    "min_tokens": (0, 1),
    "priority": (-100, 100),
    "prediction": ({"type": "content", "content": "a"},),
    "guided_choice": (["a"], ["a", "b"]),
    "guided_json": ({}, '{"type": "object"}'),
    "guided_regex": ("a",),
    "guided_grammar": ('start: "a"', 'root ::= "a"'),
    "structured_outputs": ({}, {"choice": ["a"]}, {"json_object": True}, {"regex": "a"}),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "include_reasoning": (True, False),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "enable_thinking": (True, False),
    "add_generation_prompt": (True, False),
    "continue_final_message": (True, False),
    "logprobs": (True, False),
}


def test_what_is_refused_says_why_and_what_asks_for_nothing_says_what_there_is(address):
    for name, why in bodies.ChatBody.refused.items():
        error = post(address, "/v1/chat/completions", {"messages": USER, name: 1}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert error["message"].endswith(why)
    for body, param, message in (
        ({"verbosity": "low"}, "verbosity", "Ask for short answers in the prompt"),
        ({"guided_regex": "a", "regex": "b"}, "response_format", "an answer has one form"),
        ({"guided_json": "{"}, "guided_json", "a text that is not JSON"),
    ):
        error = post(address, "/v1/chat/completions", {"messages": USER, **body}).json()["error"]
        assert error["param"] == param
        assert message in error["message"]


def test_every_field_says_what_becomes_of_it():
    for name in REQUIRED:
        for row in field_rows(getattr(bodies, name)):
            assert row.about, (name, row.name)


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


def test_a_seed_below_zero_is_one_of_its_own_but_minus_one_is_any(address):
    def text(seed):
        body = {"prompt": "the", "max_tokens": 12, "ignore_eos": True, "seed": seed}
        return post(address, "/v1/completions", body).json()["choices"][0]["text"]

    assert text(-2) == text(-2) == text(2**64 - 2)
    assert len({text(-2), text(1), text(-3)}) == 3
    assert len({text(-1) for _ in range(4)}) > 1


TOOL = {"type": "function", "function": {"name": "f", "description": "d"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
TALKS = {
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]},
    "calls": {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    "tools": {"messages": USER, "tools": [TOOL]},
    "tools that are not told": {"messages": USER, "tools": [TOOL], "tool_choice": "none"},
    "variables": {"messages": USER, "chat_template_kwargs": {"mood": "!"}},
    "thinking": {"messages": USER, "enable_thinking": True},
    "effort": {"messages": USER, "reasoning_effort": "low"},
    "no answer": {"messages": USER, "add_generation_prompt": False},
    "going on": {"messages": [*USER, {"role": "assistant", "content": "a dog"}],
                 "continue_final_message": True, "add_generation_prompt": False},
    "nulls": {"messages": [{**USER[0], "name": None}], "tools": None, "enable_thinking": None,
              "chat_template_kwargs": None, "add_generation_prompt": None},
}  # fmt: skip
TEMPLATE = (
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.a }}{% endfor %}"
    "{% endfor %}{{ mood }}{{ reasoning_effort }}{% if enable_thinking %}<think>{% endif %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    folder = save_tiny_chat(tmp_path_factory.mktemp("serve") / "talks", TEMPLATE)
    model = load_model(folder, backend="ref")
    with serving({"talks": model}) as (address, _):
        yield address, model


@pytest.mark.parametrize("name", TALKS)
def test_a_chat_and_its_count_and_python_have_the_same_tokens(talking, name):
    address, model = talking
    body = TALKS[name]
    counted = post(address, "/tokenize", body).json()
    answer = post(address, "/v1/chat/completions", {**body, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == counted["count"] == len(counted["tokens"])
    told = {**body, "tools": None} if body.get("tool_choice") == "none" else body
    assert counted["tokens"] == model.prompt_tokens(conversation_of(told))
    text = post(address, "/detokenize", {"tokens": counted["tokens"]}).json()["prompt"]
    shown = {
        "parts": "<user>the cat<answer>", "calls": "<tool_call>b<answer>", "effort": "catlow<an",
        "tools": '"description": "d", "parameters": {"type": "object", "properties": {}}}}]<user>',
        "tools that are not told": "<user>the cat<answer>", "variables": "cat!<answer>",
        "thinking": "cat<think><answer>", "no answer": "<user>the cat",
        "going on": "<assistant>a dog", "nulls": "<user>the cat<answer>",
    }  # fmt: skip
    assert shown[name] in text
    assert ("<answer>" in text) == (name not in ("no answer", "going on"))


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        ("chat", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "`tools` cannot"),
        ("chat", {"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "`a b`"),
        ("chat", {"messages": [{"role": "user", "content": 3}]}, "messages", "`content` of messa"),
        ("chat", {"messages": [{"role": 3}]}, "messages", "with a `role`"),
        ("chat", {"continue_final_message": True, "add_generation_prompt": True},
         "add_generation_prompt", "exclude each other"),
        ("chat", {"reasoning_effort": 3}, "reasoning_effort", "Expected `str | null`, got `int`"),
        ("tokens", {"add_special_tokens": True}, "add_special_tokens", "writes special tokens"),
        ("tokens", {"messages": None, "prompt": "a", "tools": [TOOL]}, "tools", "needs `mess"),
        ("tokens", {"messages": None, "prompt": "a", "tool_choice": "none"}, "tool_choice", "need"),
        ("tokens", {"prompt": "a"}, "prompt", "give one of"),
    ],
)  # fmt: skip
def test_what_no_conversation_can_be_told_is_refused(talking, path, fields, param, message):
    where = "/tokenize" if path == "tokens" else "/v1/chat/completions"
    answer = post(talking[0], where, {"messages": USER, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param


def test_an_effort_that_the_template_does_not_read_is_refused(address):
    answer = post(address, "/v1/chat/completions", {"messages": USER, "reasoning_effort": "low"})
    assert answer.status_code == 400
    assert "reads no `reasoning_effort`" in answer.json()["error"]["message"]


def test_special_tokens_of_a_text_are_as_asked_for(address, model):
    for asked in ({}, {"add_special_tokens": None}, {"add_special_tokens": True}):
        found = post(address, "/tokenize", {"prompt": "the cat", **asked}).json()["tokens"]
        assert found == model.tokenizer.encode("the cat")
    bare = post(address, "/tokenize", {"prompt": "the cat", "add_special_tokens": False}).json()
    assert bare["tokens"] == model.tokenizer.encode("the cat", special=False)


def test_the_description_takes_nulls_and_what_it_says():
    jsonschema = pytest.importorskip("jsonschema")
    page = openapi_page()
    for name, known in REQUIRED.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": page["components"]}
        nulls = {field: None for each, field in FIELDS if each == name}
        jsonschema.validate({**nulls, "unknown": None, **known}, schema)
        for wrong in ({**known, "unknown": 1}, dict.fromkeys(known) or {"prompt": 1}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, schema)
    schema = {"$ref": "#/components/schemas/ChatBody", "components": page["components"]}
    form = {"type": None, "json_schema": {"name": "x", "schema": {}}}
    for wrong in ({"response_format": form}, {"tools": [None]}, {"n": 0}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"messages": USER, **wrong}, schema)


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", 0.3), ("epsilon_cutoff", 0.004), ("eta_cutoff", 0.9), ("min_p", 0.8)],
)
def test_cuts_of_the_distribution_are_those_of_python(address, model, name, value):
    asked = {"prompt": [5, 9, 2], "max_tokens": 12, "ignore_eos": True, "seed": 3}
    found = post(address, "/v1/completions", {**asked, name: value}).json()["choices"][0]["text"]
    fields = {"max_tokens": 12, "ignore_eos": True, "seed": 3, name: value}
    assert found == generate(model, [5, 9, 2], **fields).text
    assert found != post(address, "/v1/completions", asked).json()["choices"][0]["text"]
    assert post(address, "/v1/completions", {**asked, name: 1.5}).status_code == 400


def test_the_tokens_of_prompts_and_answers_come_back(address, model):
    asked = {"max_tokens": 6, "ignore_eos": True, "seed": 1, "n": 2, "return_token_ids": True}
    texts = {**asked, "prompt": ["the cat", "a"]}
    whole = post(address, "/v1/completions", texts).json()["choices"]
    prompts = [model.tokenizer.encode(each) for each in texts["prompt"]]
    assert [each["prompt_token_ids"] for each in whole] == [prompts[n // 2] for n in range(4)]
    for each in whole:
        assert len(each["token_ids"]) == 6
        assert model.tokenizer.decode(each["token_ids"]) == each["text"]
    assert whole[0]["token_ids"] != whole[1]["token_ids"]
    for fields in ("prompt_token_ids", "token_ids"):
        found = [[] for _ in whole]
        for chunk in stream(address, "/v1/completions", texts):
            for choice in chunk["choices"]:
                found[choice["index"]] += choice.get(fields, [])
        assert found == [each[fields] for each in whole]
    chat = {**asked, "messages": USER}
    told = post(address, "/v1/chat/completions", chat).json()
    chunks = stream(address, "/v1/chat/completions", chat)
    assert told["prompt_token_ids"] == chunks[0]["prompt_token_ids"]
    counted = post(address, "/tokenize", {"messages": USER}).json()
    assert told["prompt_token_ids"] == counted["tokens"]
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1
    for choice in told["choices"]:
        parts = [each for chunk in chunks for each in chunk["choices"]]
        mine = [each for each in parts if each["index"] == choice["index"]]
        assert [t for each in mine for t in each.get("token_ids", [])] == choice["token_ids"]
        assert len(choice["token_ids"]) == 6
    left_out = post(address, "/v1/completions", {"prompt": "a", "max_tokens": 1}).json()
    assert left_out["choices"][0].keys().isdisjoint({"token_ids", "prompt_token_ids"})


def stream(address, path, body):
    """Return the chunks of a stream."""
    lines = http.post(f"{address}{path}", json={**body, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_tokens_may_be_the_only_ones_or_never_come(address, model):
    asked = {"prompt": "the cat", "max_tokens": 12, "ignore_eos": True, "seed": 1}

    def tokens(**more):
        body = {**asked, "return_token_ids": True, **more}
        return post(address, "/v1/completions", body).json()["choices"][0]["token_ids"]

    few = [5, 40, 41, 40]
    assert set(tokens(allowed_token_ids=few)) <= set(few)
    # The last token of a word that has several is not banned elsewhere.
    free = tokens(allowed_token_ids=[65, 66])
    word = model.tokenizer.decode([65, 66])
    sequence = model.tokenizer.encode(word, special=False)
    pairs = [free[at : at + 2] for at in range(11)]
    assert sequence == [65, 66]
    assert sequence in pairs
    found = tokens(allowed_token_ids=[65, 66], bad_words=[word])
    assert sequence not in [found[at : at + 2] for at in range(11)]
    assert set(tokens(allowed_token_ids=[65, 66], bad_words=[word[1]])) == {65}
    chat = {"messages": USER, "max_tokens": 4, "allowed_token_ids": few, "return_token_ids": True}
    answer = post(address, "/v1/chat/completions", chat).json()
    assert set(answer["choices"][0]["token_ids"]) <= set(few)


def test_many_tokens_of_a_text_are_written_in_portions(address, model, monkeypatch):
    monkeypatch.setattr(events, "_MOST_ENTRIES", 7)
    text = "the cat " * 10
    answer = post(address, "/tokenize", {"prompt": text})
    assert "content-length" not in answer.headers
    tokens = model.tokenizer.encode(text)
    told = {"count": len(tokens), "max_model_len": model.causal_lm().context_length}
    assert answer.json() == {**told, "tokens": tokens}
