"""Clients of other people, as they are: litellm, LangChain, lm-eval, schemathesis."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from serve.clients import http

MESSAGES = [{"role": "user", "content": "the cat"}]
DRAWN = {"temperature": 0.9, "seed": 3, "max_tokens": 12}
MANY = pytest.mark.filterwarnings("ignore")
"""Libraries of others warn of what is theirs."""


@MANY
def test_litellm(address, model):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    asked = {"model": "openai/tiny", "api_base": f"{address}/v1", "api_key": "none"}
    made = litellm.completion(messages=MESSAGES, **asked, **DRAWN)
    told = gptrs.generate(model, MESSAGES, **DRAWN)
    assert made.choices[0].message.content == told.text
    assert made.usage.completion_tokens == 12
    stream = litellm.completion(messages=MESSAGES, stream=True, **asked, **DRAWN)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == told.text
    plain = litellm.text_completion(
        prompt="the cat",
        max_tokens=5,
        temperature=0,
        **{**asked, "model": "text-completion-openai/tiny"},
    )
    assert (
        plain.choices[0].text == gptrs.generate(model, "the cat", max_tokens=5, temperature=0).text
    )
    with pytest.raises(litellm.NotFoundError, match="there is no model called 'other'"):
        litellm.completion(messages=MESSAGES, **{**asked, "model": "openai/other"})


@MANY
def test_langchain(address, model):
    library = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    reached = {"model": "tiny", "base_url": f"{address}/v1", "api_key": "none"}
    chat = library.ChatOpenAI(**reached, **DRAWN)
    told = gptrs.generate(model, MESSAGES, **DRAWN)
    made = chat.invoke([("user", "the cat")])
    assert made.content == told.text
    assert made.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in chat.stream([("user", "the cat")])) == told.text
    several = chat.batch([[("user", "the cat")]] * 3)
    assert {one.content for one in several} == {told.text}
    plain = library.OpenAI(**reached, temperature=0, max_tokens=5)
    expected = gptrs.generate(model, "the cat", max_tokens=5, temperature=0).text
    assert plain.invoke("the cat") == expected


@MANY
def test_langchain_structured_output(address):
    """Of a schema, by `response_format`."""
    library = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    chat = library.ChatOpenAI(
        model="tiny", base_url=f"{address}/v1", api_key="none", temperature=1, seed=1, max_tokens=90
    )
    schema = {
        "title": "Answer", "type": "object", "required": ["sure"], "additionalProperties": False,
        "properties": {"sure": {"type": "boolean"}},
    }  # fmt: skip
    found = chat.with_structured_output(schema, method="json_schema").invoke([("user", "the cat")])
    assert found in ({"sure": True}, {"sure": False})


@MANY
def test_lm_eval_scores_what_a_forward_pass_scores(address, model):
    """`local-completions` sends token ids with `echo`, and reads the scores of what follows."""
    library = pytest.importorskip(
        "lm_eval.models.openai_completions", reason="lm-eval is not installed"
    )
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    client = library.LocalCompletionsAPI(
        model="tiny", base_url=f"{address}/v1/completions", tokenizer=str(model.files.path),
        tokenizer_backend="huggingface", batch_size=2, max_retries=1, max_length=64,
    )  # fmt: skip
    context, endings = "the cat and", (" the dog", " a cat", "x")
    found = client.loglikelihood(
        [instance("loglikelihood", {}, (context, ending), 0) for ending in endings]
    )
    for (score, greedy), ending in zip(found, endings, strict=True):
        tokens = model.tokenizer.encode(context + ending)
        after = len(tokens) - len(model.tokenizer.encode(context))
        logits = model.forward(np.array([tokens]))[0].astype(np.float64)
        exact = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        pairs = list(zip(exact[-1 - after : -1], tokens[-after:], strict=True))
        assert score == pytest.approx(sum(row[token] for row, token in pairs), abs=1e-6)
        assert greedy == all(row.argmax() == token for row, token in pairs)
    options = {"max_gen_toks": 5, "temperature": 0.0, "until": ["zz"]}
    made = client.generate_until([instance("generate_until", {}, ("the cat", options), 0)])
    assert made == [gptrs.generate(model, "the cat", max_tokens=5, temperature=0).text]


@MANY
@pytest.mark.exhaustive
def test_schemathesis_finds_nothing_on_the_described_routes(address):
    """Random requests by the OpenAPI page: each answer is one that the page tells of.

    The page cannot say which fields exclude each other, hence requests of it may be refused.
    """
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    accepted = pytest.importorskip("schemathesis.specs.openapi.checks").positive_data_acceptance
    schema = schemathesis.openapi.from_dict(http.get(f"{address}/openapi.json").json())
    schema.config.update(base_url=address)
    tried = 0
    for operation in (found.ok() for found in schema.get_all_operations()):

        @hypothesis.settings(
            max_examples=15, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy())
        def asks(case):
            nonlocal tried
            tried += 1
            if case.path.endswith("completions") and isinstance(case.body, dict):
                case.body = {**case.body, "max_tokens": 2}  # whatever else it asks for
                case.body.pop("max_completion_tokens", None)
            response = case.call()
            case.validate_response(response, excluded_checks=[accepted])
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                assert set(response.json()) <= {"error", "type"}

        asks()
    assert tried > 100
