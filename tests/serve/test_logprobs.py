"""Log-probabilities over HTTP: texts, bytes and places of tokens are those of the text."""

from __future__ import annotations

import json

import pytest
from tokenizers import processors

from gptrs_runtime.load import load_model
from runtime.test_token_bytes import of_bytes, of_bytes_with_added, of_sentencepiece
from runtime.tiny_chat import save_tiny_chat
from serve.clients import http
from serve.conftest import serving

MADE = {"bytes": of_bytes, "added": of_bytes_with_added, "spaces": of_sentencepiece}
SAID = [{"role": "user", "content": "für Elise 😀"}]
MOST = 24


def begun(tokenizer):
    """The tokenizer with a special token before each text."""
    first = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[first]
    )
    return tokenizer


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    models = {}
    for name, make in MADE.items():
        tokenizer = begun(make())
        folder = tmp_path_factory.mktemp("logprobs") / name
        save_tiny_chat(folder, vocab_size=tokenizer.get_vocab_size() + 2)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": "{{ messages[0].content }}"})
        )
        models[name] = load_model(folder, backend="ref")
    with serving(models) as (address, _):
        yield address, models


def post(address, path, body):
    answer = http.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(address, path, body):
    with http.stream("POST", f"{address}{path}", json={**body, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return [json.loads(line) for line in lines[:-1]]


def own_bytes(model, token):
    return list(model.tokenizer.token_bytes(token, special=False) or b"")


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MADE)
def test_bytes_of_a_chat_are_those_of_its_text(served, name, seed):
    address, models = served
    body = {"model": name, "messages": SAID, "max_tokens": MOST, "logprobs": True,
            "top_logprobs": 20, "seed": seed, "ignore_eos": True}  # fmt: skip
    choice = post(address, "/v1/chat/completions", body)["choices"][0]
    found = choice["logprobs"]["content"]
    data = b"".join(bytes(one["bytes"] or ()) for one in found)
    if name != "spaces":
        assert data.decode(errors="replace") == choice["message"]["content"]
    chunks = streamed(address, "/v1/chat/completions", body)
    scores = [each["choices"][0]["logprobs"] for each in chunks]
    again = [one for score in scores if score for one in score["content"]]
    assert [(one["token"], one["bytes"]) for one in again] == [
        (one["token"], one["bytes"]) for one in found
    ]
    model = models[name]
    texts = {model.tokenizer.token_text(n): n for n in range(model.tokenizer.size)}
    for entry in [each for one in found for each in (one, *one["top_logprobs"])]:
        if entry["bytes"] is None:
            assert int(entry["token"].removeprefix("token_id:")) >= model.tokenizer.size
        else:
            assert entry["bytes"] == own_bytes(model, texts[entry["token"]])


def test_special_tokens_are_shown_if_asked_for_but_not_the_end(address, model):
    tokenizer, (end,) = model.tokenizer, model.eos_tokens
    tokens = [end, *tokenizer.encode("the cat", special=False)]
    body = {"max_tokens": MOST, "allowed_token_ids": tokens, "seed": 1, "ignore_eos": True,
            "return_token_ids": True, "skip_special_tokens": False,
            "return_tokens_as_token_ids": True}  # fmt: skip
    whole = post(address, "/v1/completions", {**body, "prompt": "a", "logprobs": 1})["choices"][0]
    assert end in whole["token_ids"]
    assert whole["text"] == tokenizer.decode(whole["token_ids"], special=True)
    chunks = streamed(address, "/v1/completions", {**body, "prompt": "a", "logprobs": 1})
    assert is_same(joined(chunks), whole)
    named = [f"token_id:{token}" for token in whole["token_ids"]]
    assert whole["logprobs"]["tokens"] == named
    mark = tokenizer.token_text(end)
    for place, token in zip(whole["logprobs"]["text_offset"], whole["token_ids"], strict=True):
        assert whole["text"].startswith(mark, place) == (token == end)

    asked = {**body, "messages": SAID, "logprobs": True}
    choice = post(address, "/v1/chat/completions", asked)["choices"][0]
    assert end in choice["token_ids"]
    assert choice["message"]["content"] == tokenizer.decode(choice["token_ids"], special=True)
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in entries) == choice["message"]["content"].encode()
    assert [one["token"] for one in entries] == [f"token_id:{t}" for t in choice["token_ids"]]
    ended = {**asked, "allowed_token_ids": [end], "ignore_eos": False}
    assert post(address, "/v1/chat/completions", ended)["choices"][0]["message"]["content"] == ""


def joined(chunks):
    """The text and the scores of a stream of completions."""
    choices = [each["choices"][0] for each in chunks if each["choices"]]
    scores = [each["logprobs"] for each in choices if each["logprobs"]]
    keys = ("tokens", "token_logprobs", "text_offset")
    whole = {key: [one for score in scores for one in score[key]] for key in keys}
    return "".join(each["text"] for each in choices), whole


def is_same(streamed, whole) -> bool:
    """Whether a stream has the text and the scores of a whole answer, but for rounding."""
    text, scores = streamed
    logprobs = whole["logprobs"]
    close = pytest.approx(logprobs["token_logprobs"], abs=1e-4)
    same = all(scores[key] == logprobs[key] for key in ("tokens", "text_offset"))
    return same and text == whole["text"] and scores["token_logprobs"] == close


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_places_of_a_completion_are_those_in_its_text(served, name, echo, seed):
    address, models = served
    tokenizer = models[name].tokenizer
    prompts = ["für Elise 😀 fox", tokenizer.encode("The fox 😀 isn't"), "", " a"]
    body = {"model": name, "prompt": prompts[seed], "max_tokens": MOST, "logprobs": 2,
            "echo": echo, "seed": seed, "ignore_eos": True}  # fmt: skip
    choice = post(address, "/v1/completions", body)["choices"][0]
    text, scores = choice["text"], choice["logprobs"]
    assert is_same(joined(streamed(address, "/v1/completions", body)), choice)
    places = scores["text_offset"]
    assert places == sorted(places)
    assert len(places) == len(scores["tokens"]) == len(scores["token_logprobs"])
    assert all(0 <= place <= len(text) for place in places)
    special = tokenizer.special_pieces()
    for number, (token, place) in enumerate(zip(scores["tokens"], places, strict=True)):
        if token in special or token.startswith(("token_id:", "bytes:")):
            continue
        if text[place : place + len(token)] != token:
            assert name == "spaces", (number, token)
            # The space before a text that SentencePiece adds and takes away again.
            is_first = text[place : place + len(token) - 1] == token.removeprefix(" ")
            assert is_first or "\N{REPLACEMENT CHARACTER}" in text, (number, token)


def test_a_part_of_a_character_is_written_as_openai_does(served):
    address, models = served
    tokenizer = models["bytes"].tokenizer
    tokens = tokenizer.encode("𒐫", special=False)
    body = {"model": "bytes", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 0}
    choice = post(address, "/v1/completions", body)["choices"][0]
    assert choice["text"] == "𒐫"
    assert choice["logprobs"]["tokens"] == [
        r"bytes:\xf0", r"bytes:\x92", r"bytes:\x90", r"bytes:\xab",
    ]  # fmt: skip
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 0]
    biased = {"model": "bytes", "messages": SAID, "max_tokens": 1, "logprobs": True,
              "logit_bias": {str(tokens[1]): 100}, "temperature": 0}  # fmt: skip
    (entry,) = post(address, "/v1/chat/completions", biased)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == (r"\x92", [0x92])


def test_a_hidden_special_token_takes_no_place(served):
    address, _ = served
    for name in MADE:
        body = {"model": name, "prompt": "The fox", "max_tokens": 0, "echo": True, "logprobs": 1}
        choice = post(address, "/v1/completions", body)["choices"][0]
        assert choice["text"] == "The fox"
        assert choice["logprobs"]["tokens"][0] == "<s>"
        assert choice["logprobs"]["text_offset"][:2] == [0, 0]


def test_the_space_before_a_text_is_there_where_a_prompt_precedes_it(served):
    address, models = served
    tokenizer = models["spaces"].tokenizer
    texts = map(tokenizer.token_text, range(tokenizer.size))
    first = next(n for n, text in enumerate(texts) if text[0] == " " and text.strip())
    body = {"model": "spaces", "prompt": "The", "max_tokens": 1, "temperature": 0, "logprobs": 1,
            "logit_bias": {str(first): 100}}  # fmt: skip
    alone = post(address, "/v1/completions", body)["choices"][0]
    echoed = post(address, "/v1/completions", {**body, "echo": True})["choices"][0]
    own = tokenizer.token_text(first)
    assert alone["text"] == own[1:]
    assert echoed["text"] == f"The{own}"
    assert alone["logprobs"]["text_offset"] == [0]
    assert echoed["logprobs"]["text_offset"][-1] == 3
    assert joined(streamed(address, "/v1/completions", {**body, "echo": True}))[0] == f"The{own}"


def test_tokens_behind_a_stop_string_are_at_the_end(served):
    address, _ = served
    body = {"model": "bytes", "prompt": "x", "max_tokens": MOST, "temperature": 0, "logprobs": 0}
    whole = post(address, "/v1/completions", body)["choices"][0]["text"]
    stop = whole[3:9]
    body |= {"stop": [stop]}
    choice = post(address, "/v1/completions", body)["choices"][0]
    text, places = choice["text"], choice["logprobs"]["text_offset"]
    assert text == whole[: whole.index(stop)]
    assert max(places) == len(text)
    assert is_same(joined(streamed(address, "/v1/completions", body)), choice)


@pytest.mark.parametrize("name", MADE)
def test_scores_of_a_prompt_are_those_of_its_echo_by_ids(served, name):
    address, models = served
    body = {"model": name, "prompt": ["x of", "für"], "max_tokens": 0, "n": 2}
    asked = {**body, "prompt_logprobs": 2, "return_token_ids": True}
    whole = post(address, "/v1/completions", asked)
    echoed = post(address, "/v1/completions", {**body, "echo": True, "logprobs": 2})
    assert whole["usage"] == echoed["usage"]
    for choice, echo in zip(whole["choices"], echoed["choices"], strict=True):
        assert (choice["text"], choice["logprobs"]) == ("", None)
        first, *scores = choice["prompt_logprobs"]
        assert first is None
        tokens, told = choice["prompt_token_ids"][1:], echo["logprobs"]["token_logprobs"][1:]
        for row, token, logprob in zip(scores, tokens, told, strict=True):
            assert row[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-5)
            ranks = [each["rank"] for each in row.values()]
            assert sorted(rank for rank in ranks if rank) == [1, 2]
            assert len(row) == 3 - (row[str(token)]["rank"] is not None)
            assert {each["decoded_token"] for each in row.values()} == {
                models[name].tokenizer.token_text(int(each)) or f"token_id:{each}" for each in row
            }
    answered = post(address, "/v1/completions", {**asked, "max_tokens": 2, "prompt": "x of"})
    assert answered["choices"][1]["prompt_logprobs"] == whole["choices"][0]["prompt_logprobs"]


def test_scores_of_a_prompt_are_told_whole_and_once(served):
    address, _ = served
    body = {"model": "bytes", "prompt": "x", "prompt_logprobs": 0}
    for more in ({"stream": True}, {"echo": True, "logprobs": 0}, {"prompt_logprobs": 21}):
        refused = http.post(f"{address}/v1/completions", json={**body, **more})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "prompt_logprobs"), error


def test_two_tokens_of_one_text_are_both_told(served):
    """The entry of a byte and that of its character."""
    address, models = served
    tokenizer = models["spaces"].tokenizer
    letter = tokenizer.number("x") or tokenizer.number("o")
    byte = tokenizer.number(f"<0x{tokenizer.token_bytes(letter)[0]:02X}>")
    assert tokenizer.token_bytes(byte) == tokenizer.token_bytes(letter)
    most = models["spaces"].causal_lm().vocab_size
    body = {"model": "spaces", "prompt": "The", "max_tokens": 1, "temperature": 0, "logprobs": 20}
    for bias in ({}, {str(letter): 50, str(byte): 49}):
        made = post(address, "/v1/completions", {**body, "logit_bias": bias})["choices"][0]
        assert len(made["logprobs"]["top_logprobs"][0]) == min(20, most)
