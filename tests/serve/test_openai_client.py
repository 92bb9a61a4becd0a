"""OpenAI's own client, as it is: chats, completions, streams, errors."""

from __future__ import annotations

import pytest

import gptrs

openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}]
DRAWN = {"temperature": 0.9, "seed": 3, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client):
    (listed,) = client.models.list()
    assert (listed.id, listed.owned_by) == ("tiny", "gptrs")
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat_is_what_generate_gives(client, model):
    made = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, **DRAWN)
    told = gptrs.generate_several(model, MESSAGES, 2, **DRAWN)
    assert [choice.message.content for choice in made.choices] == [text.text for text in told]
    assert made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == 24
    assert made.usage.prompt_tokens == len(told[0].prompt_token_ids)


def test_a_stream_begins_with_roles_and_ends_with_reasons_and_usage(client):
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, **DRAWN)
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, stream=True, stream_options={"include_usage": True},
        **DRAWN,
    )  # fmt: skip
    chunks = list(stream)
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant", "assistant"]
    for index, choice in enumerate(whole.choices):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert [one.finish_reason for one in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == choice.finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_log_probabilities_of_a_chat(client, model):
    fields = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, **DRAWN}
    made = client.chat.completions.create(model="tiny", **fields)
    told = gptrs.generate(model, MESSAGES, logprobs=3, **DRAWN)
    found = made.choices[0].logprobs.content or []
    assert [one.logprob for one in found] == pytest.approx(
        [s.logprob for s in told.logprobs or ()], 1e-4
    )
    assert all(len(one.top_logprobs) == 3 for one in found)
    streamed = client.chat.completions.create(model="tiny", stream=True, **fields)
    entries = [e for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [one.token for one in entries] == [one.token for one in found]


def test_completions_of_texts_and_tokens_and_stops(client, model):
    text = gptrs.generate(model, "the cat", max_tokens=30, temperature=0).text
    tokens = model.tokenizer.encode("the cat")
    stop = text[len(text) // 2 :][:3]
    for prompt in ("the cat", tokens):
        made = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=30, temperature=0, stop=[stop]
        )
        assert made.choices[0].text == text[: text.index(stop)]
        assert made.choices[0].finish_reason == "stop"
    several = client.completions.create(
        model="tiny", prompt=["the cat", "the dog"], n=2, max_tokens=3, temperature=0
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text


def test_a_stream_of_several_prompts(client):
    fields = {"model": "tiny", "prompt": ["the cat", "the dog"], "n": 2, "echo": True, **DRAWN}
    whole = client.completions.create(**fields)
    texts = {}
    for chunk in client.completions.create(stream=True, **fields):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}


@pytest.mark.parametrize("most", [0, 1])
def test_echoed_prompts_are_scored_as_a_forward_pass_scores_them(client, model, most):
    """As lm-eval's `local-completions` asks."""
    tokens = model.tokenizer.encode("the cat and the dog")
    made = client.completions.create(
        model="tiny", prompt=tokens, max_tokens=most, temperature=0, logprobs=1, echo=True
    )
    scores = made.choices[0].logprobs
    import numpy as np

    logits = model.forward(np.array([tokens]))[0].astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [exact[at, token] for at, token in enumerate(tokens[1:])]
    assert scores.token_logprobs[0] is None
    assert scores.token_logprobs[1 : len(tokens)] == pytest.approx(expected, abs=1e-6)
    assert len(scores.tokens) == len(tokens) + most == len(scores.text_offset)
    best = [max(top, key=top.get) == scores.tokens[at + 1]
            for at, top in enumerate(scores.top_logprobs[1 : len(tokens)])]  # fmt: skip
    assert best == [exact[at].argmax() == token for at, token in enumerate(tokens[1:])]


def test_a_bias_bans_and_forces_tokens(client, model):
    token = model.tokenizer.encode("the")[0]
    made = client.completions.create(
        model="tiny", prompt="x", max_tokens=4, temperature=0, logit_bias={str(token): 100}
    )
    assert made.choices[0].text == model.tokenizer.decode([token] * 4)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "there is no model called 'other'; there are `tiny`"),
        ({"temperature": 3}, 400, "`temperature`: Expected `float` <= 2.0"),
        ({"top_logprobs": 3}, 400, "`top_logprobs` needs `logprobs`"),
        ({"audio": {"voice": "x"}}, 400, "`audio` is not a parameter that this server supports"),
        ({"max_tokens": 5000}, 400, "this server writes at most 100 tokens"),
        ({"logit_bias": {"x": 1}}, 400, "`logit_bias` names tokens by their numbers below"),
        ({"messages": [{"role": "user", "content": "cat " * 300}]}, 400, "do not fit into the"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "message 0 has a part that is neither text nor an image",
        ),
    ],
)
def test_refusals(client, fields, status, message):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3, **fields}
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(
            extra_body={key: asked.pop(key) for key in list(asked) if key == "audio"}, **asked
        )
    assert caught.value.status_code == status
    assert message in caught.value.body["message"]
