"""`/v1/interventions`: what is read and steered is what hooks give, others notice nothing."""

from __future__ import annotations

import base64
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
from serve.conftest import serving

PROMPT = [5, 9, 2, 7]
VECTOR = np.linspace(-8, 8, 32).astype(np.float32)


@pytest.fixture(scope="module")
def client(model, tmp_path_factory):
    """A server that reads and steers, with a preset; a function that asks, the answers' JSON."""
    file = tmp_path_factory.mktemp("vectors") / "v:1.safetensors"
    write_archive(file, {"direction.0": VECTOR})
    presets = read_presets([f"up={file}"])
    with (
        serving({"tiny": model}, presets=presets) as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


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


def test_a_request_whose_client_goes_away_ends_at_its_next_step(client, monkeypatch):
    steps, take = [], _Reading.take

    def slow(self, hooks):
        steps.append(1)
        assert self._gone.wait(30)
        take(self, hooks)

    asked = {"prompt": PROMPT, "read": ["h.0"], "max_tokens": 90}
    with monkeypatch.context() as patched:
        patched.setattr(_Reading, "take", slow)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{client.base_url}/v1/interventions", json=asked, timeout=2)
        patched.undo()
        _ask(client, read=["h.0"])
    assert len(steps) == 1


def test_other_answers_have_the_same_bits(client):

    def company():
        asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 3, "seed": 1}
        choice = client.post("/v1/completions", json=asked).json()["choices"][0]
        return choice["text"], choice["logprobs"]

    # One at a time: numbers of rows change the bits of products on the reference backend.
    alone, with_company = company(), 0
    with ThreadPoolExecutor(3) as threads:
        fields = {"steer": ["up"], "read": ["h.*"], "positions": "all", "max_tokens": 60}
        steered = [threads.submit(_ask, client, **fields) for _ in range(6)]
        while not all(each.done() for each in steered):
            assert company() == alone
            with_company += 1
        assert len({each.result()["choices"][0]["text"] for each in steered}) == 1
    assert with_company
    assert company() == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"read": ["h.9"]}, "no module is called `h.9`"),
        ({"read": ["*"], "positions": "all"}, "different numbers of rows"),
        ({"read": ["blocks.*.attn.hook_pattern"]}, "attention weights are not read over HTTP"),
        ({"read": ["h.0"], "positions": [4]}, "position 4 is not in the prompt of 4 tokens"),
        ({"steer": ["down"]}, "there is no preset `down`; there are `up`"),
        ({"steer": [{"layer": "h.0"}]}, "`steer[0]` needs `preset`, or `layer` and `vector`"),
        ({"steer": [{"layer": "h.0", "vector": [1, 2]}]}, "cannot be added"),
        ({"steer": [{"layer": "h.*", "vector": [1]}]}, "`h.*` is not one value"),
        ({"steer": [{"layer": "h.0", "vector": "AAA"}]}, "is no base64 of f32"),
        ({"steer": [{"layer": "h.0", "vector": [1e300] * 32}]}, "numbers beyond f32"),
        ({"steer": [{"preset": "up", "scale": 1e300}]}, "numbers beyond f32"),
        ({"steer": [{"preset": "up", "layer": "h.0"}]}, "which tells layer and vector"),
        (
            {"logit_lens": 2, "read": ["h.0.mlp.c_fc"]},
            "`h.0.mlp.c_fc` is no state that the logit lens reads",
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
    assert "which is the most of an answer" in told["message"]
    monkeypatch.setattr(watched_runs, "MOST_LENSES", 1)
    assert "the logit lens of 2 rows" in _ask(client, 400, logit_lens=1)["message"]
    monkeypatch.setattr(watched_runs, "MOST_WAITING", 0)
    assert _ask(client, 429)["code"] == "busy"


def test_a_server_that_does_not_allow_it_refuses(address):
    answer = httpx.post(f"{address}/v1/interventions", json={"prompt": PROMPT})
    assert answer.status_code == 403
    assert "start it with `--interventions`" in answer.json()["error"]["message"]


def test_words_of_the_command_line_are_checked(tmp_path, model, capsys):
    file = tmp_path / "v.safetensors"
    write_archive(file, {"any": VECTOR})
    ((name, vectors),) = read_presets([f"a={file}:h.1:-0.5"]).items()
    assert name == "a"
    np.testing.assert_array_equal(vectors["h.1"], VECTOR * np.float32(-0.5))
    for words, message in (
        (["a"], "is no NAME=FILE"),
        ([f"a={file}:h.1", f"a={file}:h.1"], "two presets are called `a`"),
        (["a=nowhere"], "there is no file `nowhere`"),
        ([f"a={file}:h.1:much"], "`much` is no scale"),
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
