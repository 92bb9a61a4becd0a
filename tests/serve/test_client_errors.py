"""What a client asks for is answered or refused with 4xx, and errors of ours say where they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import cast

import httpx
import msgspec
import numpy as np
import pytest
from msgspec.inspect import StructType

from gptrs_cli.terminal.streams import warnings_as_lines
from gptrs_serve import completions
from gptrs_serve.bodies import ChatBody, CompletionBody
from serve.clients import post
from serve.conftest import serving

AS_JSON = {"Content-Type": "application/json"}
PLAIN = {"prompt": "a", "max_tokens": 2, "seed": 3}
SAID = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "seed": 3}
NUMBERS = (
    *("0", "-0.0", "1", "-1", "0.5", "2", "-2", "100", "-100", "5e-324", "1e-300", "1e-45"),
    *("0.9999999999999999", "1e38", "1.7e308", "9223372036854775807", "18446744073709551616"),
    *("9" * 5000, "1e999", "NaN", "true", "null", '"1"', "[]"),
)


def numeric_fields(body: type[msgspec.Struct]) -> Iterator[str]:
    """The fields of a body that may be numbers; of chats those that completions have not."""
    known = () if body is CompletionBody else CompletionBody.__struct_fields__
    for field in cast(StructType, msgspec.inspect.type_info(body)).fields:
        if field.name in known:
            continue
        told = getattr(field.type, "types", (field.type,))
        parts = [p.type if isinstance(p, msgspec.inspect.Metadata) else p for p in told]
        if any(isinstance(p, msgspec.inspect.IntType | msgspec.inspect.FloatType) for p in parts):
            yield field.encode_name


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", {**PLAIN, "echo": True}, CompletionBody),
        ("/v1/chat/completions", {**SAID, "logprobs": True}, ChatBody),
    ],
)
def test_no_number_in_any_field_is_an_error_of_the_server(address, caplog, path, body, kind):
    fields = list(numeric_fields(kind))
    assert {"temperature", "top_k", "n"} <= {*fields} or "top_logprobs" in fields
    with httpx.Client(base_url=address, timeout=120) as client:
        for field in fields:
            rest = json.dumps({name: told for name, told in body.items() if name != field})
            for number in NUMBERS:
                content = f'{rest[:-1]}, "{field}": {number}}}'
                answer = client.post(path, content=content, headers=AS_JSON)
                known = (200, 400, 504) if field == "max_time" else (200, 400)
                assert answer.status_code in known, (field, number, answer.text)
                if answer.status_code == 400:
                    assert answer.json()["error"]["message"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "more",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 5e-324, "temperature": 1e-300, "top_p": 1e-300},
        {"presence_penalty": -2, "frequency_penalty": -2, "top_k": 10**15, "min_p": 1},
        {"logit_bias": {"5": 100, "6": -100}, "min_p": 5e-324},
    ],
)
def test_extreme_options_are_answered(address, more):
    answer = post(address, "/v1/completions", {**PLAIN, "max_tokens": 8, **more})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "name", ["9" * 5000, "9" * 19, "01", "00", "+1", "-1", " 1", "1_0", "1.0", "", "a", "٣", "300"]
)
def test_a_bias_names_a_token_in_one_way(address, name):
    for biases in ({name: 1}, {"1": -100, name: 50}):
        refused = post(address, "/v1/completions", {**PLAIN, "logit_bias": biases})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "logit_bias"
        assert "names tokens by their numbers below 300" in error["message"]
        assert len(error["message"]) < 200
    taken = post(address, "/v1/completions", {**PLAIN, "logit_bias": {"0": 1, "299": -1}})
    assert taken.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [10**6]}, "prompt"),
        ("/v1/completions", {"prompt": "a " * 2000}, "prompt"),
        ("/v1/completions", {"stop_token_ids": [10**6]}, "stop_token_ids"),
        ("/v1/completions", {"allowed_token_ids": [1, 10**6]}, "allowed_token_ids"),
        ("/v1/completions", {"bad_words": [""]}, "bad_words[0]"),
        ("/v1/completions", {"stop": ["a" * 1025]}, "stop[0]"),
        ("/v1/chat/completions", {"stop": "a" * 1025}, "stop"),
        ("/v1/completions", {"grammar": "("}, "grammar"),
        ("/v1/completions", {"guided_regex": "("}, "guided_regex"),
        ("/v1/completions", {"stream_options": {"a": 1}}, "stream_options.a"),
        ("/v1/chat/completions", {"reasoning_effort": "x"}, "reasoning_effort"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 2000}]},
         "messages"),
        ("/v1/responses", {"input": "a " * 2000}, "input"),
        ("/v1/responses", {"max_output_tokens": 10**6}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_at_fault_as_the_protocol_calls_it(address, path, body, param):
    rest = {"/v1/completions": PLAIN, "/v1/chat/completions": SAID, "/v1/responses": {"input": "a"}}
    answer = post(address, path, {**rest[path], **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


BANNED = {"logit_bias": {str(token): -100 for token in range(300)}}


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"regex": "a+"}, {"temperature": 0}])
def test_biases_that_leave_no_token_are_an_error_of_the_request(address, more):
    for path, body in (("/v1/completions", PLAIN), ("/v1/chat/completions", SAID)):
        refused = post(address, path, {**body, **BANNED, **more})
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "no_token"
        assert "suppressed" in refused.json()["error"]["message"]
        streamed = post(address, path, {**body, **BANNED, **more, "stream": True}).text
        assert '"code":"no_token"' in streamed
        assert streamed.endswith("data: [DONE]\n\n")


def broken_options(*_: object, **__: object) -> object:
    return [][1]


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_ours_is_told_to_the_log_with_its_place(model, capsys, monkeypatch, stream):
    monkeypatch.setattr(completions, "options_of", broken_options)
    body = {**PLAIN, "prompt": "a secret of the client", "stream": stream}
    with warnings_as_lines(), serving({"tiny": model}) as (address, _):
        failed = post(address, "/v1/completions", body, Authorization="Bearer sk-key")
    assert failed.status_code == 500
    said = failed.json()["error"]["message"]
    line = capsys.readouterr().err
    number = said.rpartition(" ")[2]
    assert said == f"the server failed; its log says why, for request {number}"
    assert line.startswith(f"error: request {number} failed: IndexError: list index out of range")
    assert "(at test_client_errors.py:" in line
    assert "broken_options, completions.py:" in line
    assert line.count("\n") == 1
    assert "secret" not in line
    assert "sk-key" not in line


def test_an_error_within_a_step_is_told_to_the_log(model, capsys, monkeypatch):
    def breaks(*_: object) -> np.ndarray:
        raise ZeroDivisionError

    with warnings_as_lines(), serving({"tiny": model}) as (address, engine):
        monkeypatch.setattr(engine._lanes["tiny"]._cache, "run", breaks)
        failed = post(address, "/v1/completions", PLAIN)
    assert failed.status_code == 500
    lines = capsys.readouterr().err.splitlines()
    step = next(line for line in lines if line.startswith("error: a step of `tiny"))
    assert "failed: ZeroDivisionError (at test_client_errors.py:" in step
    assert " breaks, scheduler.py:" in step
    assert any(line.startswith("error: request ") and "ZeroDivisionError" in line for line in lines)
