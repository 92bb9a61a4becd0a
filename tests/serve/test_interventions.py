"""`/v1/interventions`: what is read and steered is what hooks give, others notice nothing."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

import gptrs
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs_cli.main import main
from gptrs_observe.attribution import lens_of_rows
from gptrs_observe.hooks import Hooks
from gptrs_serve import watched_runs
from gptrs_serve.watched_runs import Interventions, _Reading, read_presets
from runtime.serving_models import eventually
from serve.clients import held, http, leaving
from serve.conftest import serving

PROMPT = [5, 9, 2, 7]
VECTOR = np.linspace(-8, 8, 32).astype(np.float32)


@pytest.fixture(scope="module")
def steering(model, tmp_path_factory):
    file = tmp_path_factory.mktemp("vectors") / "v:1.safetensors"
    write_archive(file, {"direction.0": VECTOR})
    with serving({"tiny": model}, presets=read_presets([f"up={file}"])) as found:
        yield found


@pytest.fixture(scope="module")
def client(steering):
    """A client of a server that reads and steers, with a preset."""
    with httpx.Client(base_url=steering[0], timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def engine(steering):
    return steering[1]


def _ask(client, status=200, **fields):
    answer = client.post("/v1/interventions", json={"prompt": PROMPT, **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


def _rows(answer, name):
    value = answer["states"][name]
    data = value["data"]
    if isinstance(data, str):
        return np.frombuffer(base64.b64decode(data), "<f4").reshape(value["shape"])
    return np.array(data, np.float32)


def test_rows_are_those_of_hooks_at_each_position(model, client):
    names = ["h.0", "blocks.1.hook_resid_post", "h.*.mlp.output"]
    found = _ask(client, read=names, positions="all", max_tokens=5, encoding_format="base64")
    tokens = [*PROMPT, *found["choices"][0]["token_ids"]]
    assert found["choices"][0]["token_ids"] == [
        *gptrs.generate(model, PROMPT, max_tokens=5, temperature=0).token_ids
    ]
    hooks = Hooks(model, ["h.*", "h.*.mlp"])
    with hooks:
        model.forward(np.array([tokens[:-1]]))
    wanted = {"h.0": "h.0", "blocks.1.hook_resid_post": "h.1",
              "h.0.mlp.output": "h.0.mlp", "h.1.mlp.output": "h.1.mlp"}  # fmt: skip
    assert list(found["states"]) == list(wanted)
    for name, module in wanted.items():
        np.testing.assert_allclose(_rows(found, name), hooks[module], rtol=1e-4, atol=1e-5)
    for asked, places in (("last", [3]), ("prompt", [0, 1, 2, 3]), ([0, -2], [0, 2])):
        some = _ask(client, read=["h.0"], positions=asked)
        assert some["states"]["h.0"]["positions"] == places
        np.testing.assert_array_equal(_rows(some, "h.0"), _rows(found, "h.0")[places])
        assert some["choices"] == []


def test_vectors_of_presets_and_requests_steer_alike(model, client):
    hooks = Hooks(model, ["h.1"], add={"h.0": 2 * VECTOR})
    with hooks:
        wanted = gptrs.generate(model, PROMPT, max_tokens=6, temperature=0)
    assert wanted.token_ids != gptrs.generate(model, PROMPT, max_tokens=6, temperature=0).token_ids
    encoded = base64.b64encode(VECTOR.tobytes()).decode()
    for steer in (
        ["up", "up"],
        [{"preset": "up", "scale": 2}],
        [{"layer": "h.0", "vector": VECTOR.tolist(), "scale": 2.0}],
        ["up", {"layer": "blocks.1.hook_resid_pre", "vector": encoded}],
    ):
        found = _ask(client, steer=steer, read=["h.1"], max_tokens=6)
        assert tuple(found["choices"][0]["token_ids"]) == wanted.token_ids
    again = _ask(client, steer=[{"preset": "up", "scale": 0}], max_tokens=6)
    plain = gptrs.generate(model, PROMPT, max_tokens=6, temperature=0)
    assert tuple(again["choices"][0]["token_ids"]) == plain.token_ids


def test_the_logit_lens_tells_what_each_state_predicts(model, client):
    found = _ask(client, logit_lens=3, positions="prompt")
    assert list(found["logit_lens"]) == [f"blocks.{n}.hook_resid_post" for n in range(2)]
    assert found["states"] == {}
    last = found["logit_lens"]["blocks.1.hook_resid_post"]
    best = model.forward(np.array([PROMPT]))[0].argmax(axis=-1)
    assert [row["tokens"][0]["token"] for row in last] == best.tolist()
    hooks = Hooks(model, ["h.0"])
    with hooks:
        model.forward(np.array([PROMPT]))
    ours = lens_of_rows(model, hooks["h.0"], 3)
    theirs = found["logit_lens"]["blocks.0.hook_resid_post"]
    assert [[t["token"] for t in row["tokens"]] for row in theirs] == [
        [t.token for t in row] for row in ours
    ]


def test_messages_are_read_as_the_chat_template_renders_them(client):
    messages = [{"role": "user", "content": "the cat"}]
    tokens = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    found = _ask(client, prompt=None, messages=messages, read=["h.1"], positions="prompt")
    assert found["prompt_token_ids"] == tokens
    plain = _ask(client, prompt=tokens, read=["h.1"], positions="prompt")
    np.testing.assert_array_equal(_rows(found, "h.1"), _rows(plain, "h.1"))


def test_a_request_whose_client_goes_away_ends_at_its_next_step(client, engine, monkeypatch):
    steps, go, take = [], threading.Event(), _Reading.take

    def held_there(self, *given):
        steps.append(1)
        assert go.wait(120)
        take(self, *given)

    monkeypatch.setattr(_Reading, "take", held_there)
    asked = {"prompt": PROMPT, "read": ["h.0"], "max_tokens": 90}
    with leaving(str(client.base_url), "/v1/interventions", json=asked):
        eventually(lambda: steps)
    eventually(lambda: engine._loop._calls)  # the server has seen it, the engine not yet
    go.set()
    eventually(lambda: not engine.state().requests)
    assert steps == [1]


def test_other_answers_have_the_same_bits(client, engine):

    def company():
        asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 3, "seed": 1}
        choice = client.post("/v1/completions", json=asked).json()["choices"][0]
        return choice["text"], choice["logprobs"]

    # The second, which finds its prompt as later ones do: numbers of rows change the bits of
    # products on the reference backend.
    alone = [company(), company()][1]
    with ThreadPoolExecutor(4) as threads:
        fields = {"steer": ["up"], "read": ["h.*"], "positions": "all", "max_tokens": 60}
        with held(engine):
            steered = [threads.submit(_ask, client, **fields) for _ in range(3)]
            other = threads.submit(company)
            eventually(lambda: engine.state().requests == 4)
        assert other.result() == alone
        assert len({each.result()["choices"][0]["text"] for each in steered}) == 1
    assert company() == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"read": ["h.9"]}, "no module is called `h.9`"),
        ({"read": ["*"], "positions": "all"}, "does not have a row for each token"),
        ({"read": ["blocks.*.attn.hook_pattern"]}, "attention weights are not read over HTTP"),
        ({"read": ["h.0"], "positions": [4]}, "position 4 is not in the prompt of 4 tokens"),
        ({"steer": ["down"]}, "there is no preset `down`; there are `up`"),
        ({"steer": [{"layer": "h.0"}]}, "`steer[0]` needs `preset`, or `layer` and `vector`"),
        ({"steer": [{"layer": "h.0", "vector": [1, 2]}]}, "cannot be added"),
        ({"steer": [{"layer": "h.*", "vector": [1]}]}, "`h.*` is not one value"),
        ({"steer": [{"layer": "h.0", "vector": "AAA"}]}, "is not base64 of f32"),
        ({"steer": [{"layer": "h.0", "vector": [1e300] * 32}]}, "numbers beyond f32"),
        ({"steer": [{"preset": "up", "scale": 1e300}]}, "numbers beyond f32"),
        ({"steer": [{"preset": "up", "layer": "h.0"}]}, "which tells layer and vector"),
        (
            {"logit_lens": 2, "read": ["h.0.mlp.c_fc"]},
            "`h.0.mlp.c_fc` is not a state that the logit lens reads",
        ),
        ({"max_tokens": 101}, "this server writes at most 100 tokens"),
        ({"prompt": None}, "give either `prompt` or `messages`"),
        ({"stream": True}, "values are sent when the answer is complete"),
    ],
)
def test_what_cannot_be_is_refused_and_the_next_request_is_answered(client, fields, message):
    assert message in _ask(client, 400, **fields)["message"]
    _ask(client, read=["h.0"])


def test_bounds_of_values_and_of_waiting_requests_hold(client, monkeypatch):
    monkeypatch.setattr(watched_runs, "MOST_BYTES", 4 * 32 * 3)
    told = _ask(client, 400, read=["h.0"], positions="all", max_tokens=4)
    assert "which is the most of a request" in told["message"]
    monkeypatch.setattr(watched_runs, "MOST_LENSES", 1)
    assert "the logit lens of 2 rows or more" in _ask(client, 400, logit_lens=1)["message"]


def test_a_server_that_does_not_allow_it_refuses(address):
    answer = http.post(f"{address}/v1/interventions", json={"prompt": PROMPT})
    assert answer.status_code == 403
    assert "start it with `--interventions`" in answer.json()["error"]["message"]


def test_words_of_the_command_line_are_checked(tmp_path, model, capsys):
    file = tmp_path / "v.safetensors"
    write_archive(file, {"any": VECTOR})
    ((name, vectors),) = read_presets([f"a={file}:h.1:-0.5"]).items()
    assert name == "a"
    np.testing.assert_array_equal(vectors["h.1"], VECTOR * np.float32(-0.5))
    for words, message in (
        (["a"], "is not NAME=FILE"),
        ([f"a={file}:h.1", f"a={file}:h.1"], "two presets are called `a`"),
        (["a=nowhere"], "there is no file `nowhere`"),
        ([f"a={file}:h.1:much"], "`much` is not a scale"),
    ):
        with pytest.raises(UsageError, match=message):
            read_presets(words)
    write_archive(tmp_path / "m.npy", {"m": np.zeros((2, 3), np.float32)})
    with pytest.raises(CheckpointError, match="not a vector"):
        read_presets([f"a={tmp_path / 'm.npy'}"])
    with pytest.raises(UsageError, match="no module is called `any`"):
        Interventions(None, read_presets([f"a={file}"])).require_presets([model])
    assert main(["serve", "--steer", f"a={file}"]) == 2
    assert "--interventions" in capsys.readouterr().err


# The same in the routes of OpenAI: whole, as a stream, several answers.

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def _post(client, path, status=200, **fields):
    asked = {"temperature": 0, "max_tokens": 6, "seed": 1, **fields}
    if path == CHAT:
        asked["messages"] = [{"role": "user", "content": "the cat"}]
    elif "prompt" not in asked:
        asked["prompt"] = PROMPT
    answer = client.post(path, json=asked)
    assert answer.status_code == status, answer.text
    if status != 200:
        return answer.json()["error"]
    if not asked.get("stream"):
        return answer.json()["choices"]
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def _streamed(chunks, count):
    """Return the text and the interventions of each answer of a stream."""
    texts, told = [""] * count, {}
    for each in chunks:
        texts[each["index"]] += each.get("text") or each.get("delta", {}).get("content") or ""
        if "interventions" in each:
            assert each["index"] not in told
            told[each["index"]] = each["interventions"]
    return texts, [told[number] for number in range(count)]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_ordinary_requests_read_the_rows_of_each_answer(model, client, path):
    asked = {"read": ["h.1"], "positions": "all", "encoding_format": "base64"}
    fields = {"n": 3, "temperature": 1, "interventions": asked}
    choices = _post(client, path, logprobs=True if path == CHAT else 1, **fields)
    plain = _post(client, path, n=3, temperature=1)
    texts = [each.get("text") or each["message"]["content"] for each in choices]
    assert texts == [each.get("text") or each["message"]["content"] for each in plain]
    assert len(set(texts)) > 1
    messages = [{"role": "user", "content": "the cat"}]
    prompt = PROMPT
    if path == CHAT:
        prompt = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    for choice in choices:
        found = choice["interventions"]
        rows = _rows(found, "h.1")
        assert found["states"]["h.1"]["positions"] == [*range(len(rows))]
        assert len(rows) >= len(prompt)
        assert found["logit_lens"] == {}
        tokens = gptrs.generate(model, prompt, max_tokens=6, seed=1, temperature=1).token_ids
        if choice["index"] == 0:
            hooks = Hooks(model, ["h.1"])
            with hooks:
                model.forward(np.array([[*prompt, *tokens[:-1]]]))
            np.testing.assert_allclose(rows, hooks["h.1"], rtol=1e-4, atol=1e-5)
    stream = _post(client, path, stream=True, **fields)
    streamed, told = _streamed(stream, 3)
    assert streamed == texts
    assert told == [each["interventions"] for each in choices]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_ordinary_requests_are_steered_and_see_the_lens(model, client, path):
    def text(choice):
        return choice.get("text") or choice["message"]["content"]

    (plain,) = _post(client, path, max_tokens=12)
    (steered,) = _post(client, path, max_tokens=12, interventions={"steer": ["up"]})
    vector = [{"layer": "h.0", "vector": VECTOR.tolist()}]
    (given,) = _post(client, path, max_tokens=12, interventions={"steer": vector})
    assert text(plain) != text(steered) == text(given)
    assert steered["interventions"] == {"states": {}, "logit_lens": {}}
    (lens,) = _post(client, path, interventions={"logit_lens": 2})
    (rows,) = lens["interventions"]["logit_lens"]["blocks.1.hook_resid_post"]
    best = rows["tokens"][0]["token"]
    if path == TEXT:
        assert best == model.forward(np.array([PROMPT]))[0][-1].argmax()
    else:
        assert text(_post(client, path, max_tokens=1)[0]) == model.tokenizer.decode([best])
    assert text(_post(client, path, max_tokens=12)[0]) == text(plain)


def test_requests_with_equal_watches_share_steps_and_prompts_keep_their_rows(client, engine):
    asked = {"read": ["h.*"], "positions": "prompt", "steer": ["up"]}
    alone = [_post(client, TEXT, prompt=[5, 9, n], interventions=asked) for n in range(6)]
    before = engine.state().steps
    with ThreadPoolExecutor(6) as threads:
        with held(engine):
            together = [
                threads.submit(_post, client, TEXT, prompt=[5, 9, n], interventions=asked)
                for n in range(6)
            ]
            eventually(lambda: engine.state().requests == 6)
        assert [each.result()[0]["text"] for each in together] == [c["text"] for (c,) in alone]
    assert engine.state().steps - before < 6 * 6
    for each, (choice,) in zip(together, alone, strict=True):
        (found,) = each.result()
        for name in ("h.0", "h.1"):
            np.testing.assert_allclose(
                _rows(found["interventions"], name),
                _rows(choice["interventions"], name),
                rtol=1e-4,
                atol=1e-5,
            )


@pytest.mark.long
def test_answers_that_give_way_to_others_have_each_row_once(model, client):
    asked = {"read": ["h.1"], "positions": "all", "encoding_format": "base64"}
    fields = {"n": 6, "temperature": 1, "max_tokens": 90, "interventions": asked}
    roomy = _post(client, TEXT, **fields)
    # The share of one watch is an eighth: room for two of the six answers.
    with (
        serving({"tiny": model}, presets={}, cache_budget="900KB") as (address, _),
        httpx.Client(base_url=address, timeout=120) as tight,
    ):
        found = _post(tight, TEXT, **fields)
    for one, other in zip(found, roomy, strict=True):
        assert one["text"] == other["text"]
        rows = one["interventions"]["states"]["h.1"]
        assert rows["positions"] == [*range(len(rows["positions"]))]
        np.testing.assert_allclose(
            _rows(one["interventions"], "h.1"),
            _rows(other["interventions"], "h.1"),
            rtol=1e-4,
            atol=1e-5,
        )


def test_many_different_watches_are_answered_or_told_to_wait(client, engine):
    def ask(n):
        vector = [float(n)] * 32
        steer = [{"layer": "h.0", "vector": vector}]
        return client.post(
            TEXT,
            json={"prompt": PROMPT, "max_tokens": 8, "interventions": {"steer": steer}},
        ).status_code

    with ThreadPoolExecutor(24) as threads:
        codes = list(threads.map(ask, range(24)))
    assert set(codes) <= {200, 429}
    assert 200 in codes
    assert [ask(n) for n in range(12)] == [200] * 12  # one after another, idle ones give way
    assert engine.state().requests == 0


def test_what_does_not_go_with_interventions_is_refused(client, address):
    for path in (CHAT, TEXT):
        with httpx.Client(base_url=address, timeout=120) as other:
            answer = _post(other, path, 403, interventions={"steer": ["up"]})
        assert answer["code"] == "no_interventions"
        told = _post(client, path, 400, interventions={"read": ["h.9"]})
        assert "no module is called `h.9`" in told["message"]
        told = _post(client, path, 400, interventions={"reads": []})
        assert "reads" in told["message"]
        told = _post(client, path, 400, interventions={"positions": [-99]})
        assert "position -99 is not in the prompt" in told["message"]
    scored = {"echo": True, "logprobs": 1, "interventions": {"read": ["h.0"]}}
    assert "scores of a prompt" in _post(client, TEXT, 400, **scored)["message"]
    unread = {"echo": True, "max_tokens": 0, "interventions": {"read": ["h.0"]}}
    assert "need an answer" in _post(client, TEXT, 400, **unread)["message"]
    for path, body in (
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
    ):
        answer = client.post(path, json={**body, "interventions": {"steer": ["up"]}})
        assert answer.status_code == 400, answer.text
        assert "interventions" in answer.text


def test_several_prompts_and_a_null_have_their_rows(client):
    asked = {"read": ["h.0"], "positions": [0]}
    choices = _post(client, TEXT, prompt=[[5, 9], [7, 2, 3]], n=2, interventions=asked)
    rows = [_rows(each["interventions"], "h.0") for each in choices]
    assert len(rows) == 4
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 0
    assert "interventions" not in _post(client, TEXT, interventions=None)[0]
