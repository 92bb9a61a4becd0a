"""Ollama's API: lines of JSON, options, thoughts and calls, embeddings, lists of models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gptrs
from gptrs_runtime.load import load_model
from gptrs_serve.dialects.ollama import HOW, _shortened
from runtime.tiny_bert import save_tiny_bert
from serve.clients import http
from serve.conftest import serving
from serve.talkers import HELLO, PARAMETERS, SAID, THOUGHTS

pytest.importorskip("llguidance", reason="llguidance is not installed")
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
ASKED = {"model": "agent", "messages": USER, "tools": [TOOL], "options": {"temperature": 0}}


def post(talking, path, body):
    return http.post(f"{talking[0]}/api/{path}", json=body)


def lines(talking, path, body):
    answer = post(talking, path, body)
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("name", ["agent", "agent:latest"])
def test_a_chat_is_a_line_for_each_piece_and_one_for_its_end(talking, name):
    found = lines(talking, "chat", {**ASKED, "model": name})
    said = "".join(line["message"].get("content", "") for line in found)
    thoughts = "".join(line["message"].get("thinking", "") for line in found)
    calls = [call for line in found for call in line["message"].get("tool_calls", ())]
    assert (said, thoughts) == (SAID, THOUGHTS)
    assert calls == [{"function": {"name": "f", "arguments": {"a": 1}}}]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert {line["model"] for line in found} == {name}
    end = found[-1]
    assert (end["done_reason"], end["prompt_eval_count"]) == ("stop", 12)
    for key in ("total_duration", "prompt_eval_duration", "eval_duration", "eval_count"):
        assert isinstance(end[key], int)
        assert end[key] > 0
    assert end["total_duration"] >= end["prompt_eval_duration"]
    whole = post(talking, "chat", {**ASKED, "stream": False}).json()
    message = {"role": "assistant", "content": SAID, "thinking": THOUGHTS, "tool_calls": calls}
    assert whole["message"] == message
    assert whole["done"] is True


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("chat", {**ASKED, "top_logprobs": 2}),
        ("generate", {"model": "say", "prompt": "hi", "raw": True, "top_logprobs": 2,
                      "options": {"num_predict": 5, "temperature": 0}}),
        ("generate", {"model": "say", "prompt": "hi"}),
    ],
)  # fmt: skip
def test_log_probabilities_are_those_of_all_tokens_whole_or_in_lines(talking, path, asked):
    asked = {"options": {"temperature": 0}} | asked | {"logprobs": True}
    whole = post(talking, path, {**asked, "stream": False}).json()
    rows = [row for line in lines(talking, path, asked) for row in line.get("logprobs", ())]
    assert [row["token"] for row in rows] == [row["token"] for row in whole["logprobs"]]
    assert len(rows) == whole["eval_count"]
    assert {len(row["top_logprobs"]) for row in rows} == {asked.get("top_logprobs", 0)}
    without = post(talking, path, {**asked, "logprobs": False, "top_logprobs": None})
    assert "logprobs" not in without.text


def test_generate_is_a_message_or_a_text_that_goes_on(talking):
    greedy = {"model": "say", "prompt": "hi", "options": {"temperature": 0}}
    assert "".join(line["response"] for line in lines(talking, "generate", greedy)) == HELLO
    whole = post(talking, "generate", {**greedy, "stream": False}).json()
    assert whole["response"] == HELLO
    raw = {**greedy, "stream": False, "raw": True, "options": {"temperature": 0, "num_predict": 5}}
    told = gptrs.generate(talking[1]["say"], "hi", max_tokens=5, temperature=0)
    assert post(talking, "generate", raw).json()["response"] == told.text
    for path, empty in (("generate", {}), ("chat", {})):
        loaded = post(talking, path, {"model": "say", **empty}).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    gap = post(talking, "generate", {**greedy, "suffix": "x"})
    assert "has no tokens that mark a gap" in gap.json()["error"]


def test_the_messages_of_ollama_are_those_of_a_chat(talking):
    call = {"function": {"name": "f", "arguments": {"a": 2}}}
    body = {
        "model": "lists", "tools": [TOOL], "think": True, "stream": False,
        "options": {"num_predict": 1},
        "messages": [
            {"role": "system", "content": "be brief"}, *USER,
            {"role": "assistant", "content": "so", "thinking": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_name": "f", "content": "seven"},
        ],
    }  # fmt: skip
    told = "[1]<system>be brief<user>hi<assistant>hmso<tool_call>f2<tool>seven!<answer>"
    tokens = talking[1]["lists"].tokenizer.encode(told, special=False)
    assert post(talking, "chat", body).json()["prompt_eval_count"] == len(tokens)
    effort = post(talking, "chat", {**body, "think": "low"}).json()["prompt_eval_count"]
    assert effort > len(tokens)


def test_options_are_those_of_a_chat(talking):
    address, _ = talking
    options = {"seed": 3, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01,
               "repeat_penalty": 1.2, "num_predict": 12, "stop": ["zz"], "num_ctx": 64,
               "mirostat": 0}  # fmt: skip
    body = {"model": "lists", "messages": USER, "stream": False, "options": options}
    same = {"model": "lists", "messages": USER, "seed": 3, "temperature": 0.8, "top_k": 20,
            "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2, "max_tokens": 12}  # fmt: skip
    chat = http.post(f"{address}/v1/chat/completions", json=same).json()
    found = post(talking, "chat", body).json()
    assert found["message"]["content"] == chat["choices"][0]["message"]["content"]
    assert found["done_reason"] == "length"


@pytest.mark.parametrize("form", ["json", PARAMETERS])
def test_a_format_is_kept(talking, form):
    body = {"model": "lists", "messages": USER, "stream": False, "format": form,
            "options": {"num_predict": 120}}  # fmt: skip
    made = next(made for made in (post(talking, "chat", body).json() for _ in range(20))
                if made["done_reason"] == "stop")  # fmt: skip
    assert isinstance(json.loads(made["message"]["content"]), dict)


def test_embeddings(tmp_path, talking):
    bert = load_model(save_tiny_bert(tmp_path / "bert"), backend="ref")
    texts = ["the cat", "a dog"]
    with serving({"say": talking[1]["say"], "bert": bert}) as (address, _):
        embed = post((address,), "embed", {"model": "bert", "input": texts}).json()
        few = post((address,), "embed", {"model": "bert", "input": "the cat", "dimensions": 3})
        one = post((address,), "embeddings", {"model": "bert:latest", "prompt": "a dog"}).json()
        long = post((address,), "embed", {"model": "bert", "input": "cat " * 99})
        none = [post((address,), "embed", {"model": "bert", "input": each}) for each in ("", [])]
        empty = post((address,), "embeddings", {"model": "bert", "prompt": ""})
        refused = post((address,), "embed",
                       {"model": "bert", "input": "cat " * 99, "truncate": False})  # fmt: skip
    expected = gptrs.embed(bert, texts)
    np.testing.assert_allclose(embed["embeddings"], expected, rtol=1e-5)
    np.testing.assert_allclose(one["embedding"], expected[1], rtol=1e-5)
    assert len(few.json()["embeddings"][0]) == 3
    assert embed["prompt_eval_count"] == 8
    assert [each.json()["embeddings"] for each in none] == [[], []]
    assert empty.json() == {"embedding": []}
    assert (long.status_code, refused.status_code) == (200, 400)


def test_what_there_is(talking):
    address, models = talking
    tags = http.get(f"{address}/api/tags").json()["models"]
    assert [each["name"] for each in tags] == [f"{name}:latest" for name in models]
    assert tags[0]["size"] > 0
    assert len({each["digest"] for each in tags}) == len(tags)
    assert {len(each["digest"]) for each in tags} == {64}
    assert tags[0]["details"]["parameter_size"] == "55.8K"
    assert [each["name"] for each in http.get(f"{address}/api/ps").json()["models"]] == [
        each["name"] for each in tags
    ]
    assert http.get(f"{address}/api/version").json()["version"].count(".") == 2
    shown = post(talking, "show", {"model": "agent"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["gpt2.context_length"] == 1024
    assert shown["template"].startswith("{% if tools %}")
    assert http.head(address).status_code == 200


def test_numbers_of_parameters_have_three_digits():
    found = [_shortened(count) for count in (7, 999_499, 999_500, 134_515_008, 7_615_616_512)]
    assert found == ["7", "999K", "1M", "135M", "7.62B"]


@pytest.mark.parametrize("name", HOW)
def test_what_changes_models_says_how_to_do_it(talking, name):
    method = "DELETE" if name == "delete" else "POST"
    answer = http.request(method, f"{talking[0]}/api/{name}", json={"model": "x"})
    assert answer.status_code == 400
    assert HOW[name] in answer.json()["error"]


def test_a_body_may_have_no_type_unless_it_comes_from_a_page(talking):
    content = json.dumps({"model": "say", "messages": USER, "stream": False}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    url = f"{talking[0]}/api/chat"
    assert http.post(url, content=content, headers=form).status_code == 200
    of_a_page = http.post(url, content=content, headers={**form, "Origin": "https://e.example"})
    assert of_a_page.status_code == 415


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "x"}, 404, "there is no model called 'x'"),
        ({"options": {"mirostat": 2}}, 400, "options.mirostat"),
        ({"options": {"tfs_z": 2}}, 400, "tfs_z"),
        ({"top_logprobs": 2}, 400, "`top_logprobs` needs `logprobs`"),
        ({"messages": [{"role": "user", "content": "a", "images": ["Zm94"]}]}, 400, "image"),
        ({"tools": [{"type": "function"}]}, 400, "function"),
    ],
)
def test_errors_are_texts(talking, fields, status, message):
    answer = post(talking, "chat", {**ASKED, **fields})
    assert answer.status_code == status
    assert message in answer.json()["error"]
