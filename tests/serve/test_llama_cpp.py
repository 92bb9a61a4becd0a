"""Routes of llama.cpp's server: `/completion`, templates, `/props`, `/slots`, its `/tokenize`."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs_runtime.generation.generate import GenerationOptions
from serve.clients import held, http, post
from serve.conftest import serving

PLAIN = {"prompt": "the cat", "temperature": 0, "n_predict": 6, "ignore_eos": True}


def test_a_completion_is_that_of_python_whole_or_in_events(address, model):
    told = gptrs.generate(model, "the cat", max_tokens=6, temperature=0, ignore_eos=True)
    whole = post(address, "/completion", {**PLAIN, "return_tokens": True}).json()
    assert (whole["content"], whole["tokens"]) == (told.text, list(told.token_ids))
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 6)
    tokens = {**PLAIN, "prompt": model.tokenizer.encode("the cat"), "stream": True}
    for more in ({}, {"return_tokens": True}):
        answer = http.post(f"{address}/completion", json={**tokens, **more})
        lines = [line for line in answer.text.split("\n\n") if line]
        found = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert "".join(event["content"] for event in found) == told.text
        assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]
        if more:
            assert [t for event in found[:-1] for t in event["tokens"]] == list(told.token_ids)
    read = post(address, "/completion", {**PLAIN, "n_predict": 0}).json()
    assert (read["content"], read["tokens_predicted"]) == ("", 0)


def test_options_that_ask_for_nothing_are_taken_and_others_refused(address, model):
    idle = {"mirostat": 0, "dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0,
            "grammar": "", "json_schema": None, "n_probs": 0, "logit_bias": [], "n_keep": 0,
            "cache_prompt": True, "stop": [], "repeat_last_n": 64, "typical_p": 1}  # fmt: skip
    order = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
             "temperature"]  # fmt: skip
    plain = post(address, "/completion", PLAIN).json()["content"]
    for samplers in (order, "edskypmxt", [*order[:1], *order[3:7], order[8]]):
        found = post(address, "/completion", {**PLAIN, "samplers": samplers}).json()
        assert found["content"] == plain
    assert post(address, "/completion", {**PLAIN, **idle}).json()["content"] == plain
    first = gptrs.generate(model, "the cat", max_tokens=1, temperature=0).token_ids[0]
    for bias in ([[first, False]], {str(first): -100}):
        found = post(address, "/completion", {**PLAIN, "logit_bias": bias, "return_tokens": True})
        assert first not in found.json()["tokens"]
    for form in ({"grammar": 'root ::= "abc"'}, {"json_schema": {"const": "abc"}}):
        found = post(address, "/completion", {**PLAIN, "ignore_eos": False, "n_predict": 40} | form)
        assert found.json()["content"].strip('"') == "abc"
    for wrong, param in (
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"samplers": ["top_k"]}, "samplers"),
        ({"samplers": order[::-1]}, "samplers"),
        ({"samplers": "k"}, "samplers"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"json_schema": {"type": "x"}}, "json_schema"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "a " * 100_000]}, "max_tokens"),
        ({"n_probs": 21}, "n_probs"),
    ):
        refused = post(address, "/completion", {**PLAIN, **wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_texts_may_stand_for_tokens_in_prompts_and_biases(address, model):
    tokens = [*model.tokenizer.encode("the cat"), 70, *model.tokenizer.encode("a", special=False)]
    asked = {**PLAIN, "return_tokens": True}
    found = post(address, "/completion", {**asked, "prompt": ["the cat", 70, "a"]}).json()
    expected = post(address, "/completion", {**asked, "prompt": tokens}).json()
    assert (found["tokens"], found["tokens_evaluated"]) == (expected["tokens"], len(tokens))
    (letter,) = model.tokenizer.encode("q", special=False)
    for bias in ([["q", 100]], {"q": 100}, {str(letter): 100}, [[letter, 100]]):
        found = post(address, "/completion", {**asked, "logit_bias": bias}).json()
        assert found["tokens"] == [letter] * 6


def test_scores_of_a_completion_are_those_of_openai_with_ids(address):
    plain = {"prompt": "the cat", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    whole = post(address, "/v1/completions", {**plain, "logprobs": 2}).json()["choices"][0]
    asked = {**PLAIN, "n_probs": 2, "return_tokens": True}
    found = post(address, "/completion", asked).json()
    scores = found["completion_probabilities"]
    assert [each["id"] for each in scores] == found["tokens"]
    assert [each["logprob"] for each in scores] == pytest.approx(
        whole["logprobs"]["token_logprobs"], abs=1e-4
    )
    for each in scores:
        first, second = each["top_logprobs"]
        assert first == {key: each[key] for key in ("id", "token", "bytes", "logprob")}
        assert second["logprob"] <= first["logprob"]
    answer = http.post(f"{address}/completion", json={**asked, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    told = [each for event in events for each in event.get("completion_probabilities", ())]
    assert [each["id"] for each in told] == found["tokens"]


def test_a_template_is_applied_as_for_the_tokens_of_a_chat(address, model):
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    text = post(address, "/apply-template", asked).json()["prompt"]
    counted = post(address, "/tokenize", asked).json()["tokens"]
    assert post(address, "/tokenize", {"content": text}).json()["tokens"] == counted
    assert post(address, "/detokenize", {"tokens": counted}).json()["content"] == text
    refused = post(address, "/apply-template", {"messages": []})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert http.get(f"{address}/props").json()["chat_template"] == model.chat_template().source
    assert http.get(f"{address}/props?model=none").status_code == 404


@pytest.mark.parametrize("special", [True, False, None])
def test_content_has_special_tokens_if_asked_for(address, model, special):
    found = post(address, "/tokenize", {"content": "the cat", "add_special": special}).json()
    assert found["tokens"] == model.tokenizer.encode("the cat", special=bool(special))
    for wrong in (
        {"content": "a", "prompt": "a"},
        {"content": "a", "add_special_tokens": True},
        {"prompt": "a", "add_special": True},
    ):
        assert post(address, "/tokenize", wrong).status_code == 400


def test_slots_are_the_answers_that_run_and_room_for_more(model):
    with serving({"tiny": model}, most_running=2) as (address, engine):
        idle = {"model": None, "is_processing": False}
        assert http.get(f"{address}/slots").json() == [{"id": 0, **idle}, {"id": 1, **idle}]
        tokens = model.tokenizer.encode("the cat")
        with held(engine):
            streams = [engine.submit(tokens, GenerationOptions(), max_tokens=9) for _ in range(3)]
            assert [each["model"] for each in http.get(f"{address}/slots").json()] == [None, None]
            # As the engine begins two of them: it is held, so that none ends meanwhile.
            for stream in streams[:2]:
                stream.texts[0].start(3)
            found = http.get(f"{address}/slots").json()
            assert found == [
                {"id": number, "model": "tiny", "is_processing": True, "speculative": False,
                 "n_prompt_tokens": len(tokens), "n_prompt_tokens_cache": 3, "n_decoded": 0}
                for number in range(2)
            ]  # fmt: skip
            assert http.get(f"{address}/slots?fail_on_no_slot=1").status_code == 503
        for stream in streams:
            stream.result()
        assert http.get(f"{address}/slots?fail_on_no_slot=1").json() == [
            {"id": number, **idle} for number in range(2)
        ]
