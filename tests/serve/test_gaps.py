"""Gaps in texts: `suffix` of completions, `/infill`, Ollama's `suffix`, for each family."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs_runtime.load import load_model
from gptrs_serve.gaps import MARKS, gap_marks
from gptrs_serve.problems import RequestError
from runtime.tiny_chat import save_scripted_chat
from serve.clients import http, post
from serve.conftest import serving

BEFORE, AFTER = "def f(", "return x"
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for each family of marks, by the first of them."""
    folder = tmp_path_factory.mktemp("gaps")
    made = {}
    for number, marks in enumerate((MARKS[0], MARKS[-1])):
        special = [mark for mark in (marks.before, marks.after, marks.middle) if mark]
        saved = save_scripted_chat(
            folder / str(number), "x", prompt="a", template="{{ messages }}", special=special
        )
        made[marks.before] = load_model(saved, backend="ref")
    return made


@pytest.fixture(scope="module")
def address(models):
    with serving(models, most_output=None) as (address, _):
        yield address


def prompt(model):
    """The tokens of the prompt, written out."""
    marks, _ = gap_marks(model)
    tokenizer = model.tokenizer

    def encode(text):
        return tokenizer.encode(text, special=False)

    ahead = [tokenizer.number(marks.before), *encode(BEFORE)]
    behind = [tokenizer.number(marks.after), *encode(AFTER)]
    if marks.suffix_first:
        return [*behind, *ahead]
    return [*ahead, *behind, tokenizer.number(marks.middle)]


@pytest.mark.parametrize("name", [MARKS[0].before, MARKS[-1].before])
def test_a_gap_is_filled_as_its_prompt_says(address, models, name):
    tokens = prompt(models[name])
    told = gptrs.generate(models[name], tokens, **GREEDY)
    body = {"model": name, "prompt": BEFORE, "suffix": AFTER, **GREEDY}
    made = post(address, "/v1/completions", body).json()
    assert made["choices"][0]["text"] == told.text
    assert made["usage"]["prompt_tokens"] == len(tokens)
    asked = {"model": name, "input_prefix": BEFORE, "input_suffix": AFTER, "temperature": 0,
             "n_predict": 6}  # fmt: skip
    whole = post(address, "/infill", asked).json()
    assert (whole["content"], whole["tokens_evaluated"]) == (told.text, len(tokens))
    assert (whole["stop"], whole["stop_type"]) == (True, "limit")
    text = http.post(f"{address}/infill", json={**asked, "stream": True}).text
    found = [json.loads(line.removeprefix("data: ")) for line in text.strip().split("\n\n")]
    assert "".join(event["content"] for event in found) == told.text
    assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]
    warm = post(address, "/infill", {**asked, "n_predict": 0}).json()
    assert (warm["content"], warm["tokens_predicted"], warm["stop_type"]) == ("", 0, "limit")
    assert warm["tokens_evaluated"] == len(tokens)
    ollama = {"model": name, "prompt": BEFORE, "suffix": AFTER, "stream": False,
              "options": {"temperature": 0, "num_predict": 6}}  # fmt: skip
    assert post(address, "/api/generate", ollama).json()["response"] == told.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": [1, 2]}, "needs a text prompt"),
        ({"echo": True}, "excludes `echo`"),
        ({"prompt": "a" * 5000}, "do not fit"),
    ],
)
def test_refusals(address, fields, message):
    body = {"prompt": BEFORE, "suffix": AFTER, **GREEDY, **fields}
    answer = post(address, "/v1/completions", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_model_without_such_tokens_says_so(model):
    with pytest.raises(RequestError, match="has no tokens that mark a gap"):
        gap_marks(model)


def test_an_empty_suffix_asks_for_nothing(address):
    plain = post(address, "/v1/completions", {"prompt": BEFORE, **GREEDY}).json()
    empty = post(address, "/v1/completions", {"prompt": BEFORE, "suffix": "", **GREEDY}).json()
    assert plain["choices"] == empty["choices"]
