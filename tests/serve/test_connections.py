"""Connections of clients that send no end of a head, in bytes or in time."""

from __future__ import annotations

import asyncio
import json

import pytest

from serve.conftest import serving

pytest.importorskip("httptools", reason="httptools is not installed")
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def port(model):
    with serving({"tiny": model}) as (address, _):
        yield int(address.rsplit(":", 1)[1])


async def told(port, first, portion=b"", portions=0):
    """Return what the server answers until it closes the connection, which it may do at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        for _ in range(portions):
            await asyncio.sleep(0.002)  # the server reads each by itself
            writer.write(portion)
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b" 400 "
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("first", "portion"),
    [
        (HEAD, b"X: " + b"y" * 9000 + b"\r\n"),
        (HEAD + b"X: ", b"y" * 9000),
        (b"GET /", b"y" * 9000),
        (BODY + b"1\r\na\r\n0\r\n", b"X: " + b"y" * 9000 + b"\r\n"),
    ],
)
def test_a_head_without_end_is_refused(port, first, portion):
    assert b" 400 " in asyncio.run(told(port, first, portion, 40))


@pytest.mark.parametrize("first", [b"", HEAD])
def test_a_head_may_not_take_for_ever(port, first, monkeypatch):
    monkeypatch.setattr("gptrs_serve.events.MOST_SECONDS", 0.1)
    assert asyncio.run(told(port, first)) == b""


def test_a_body_may_be_longer_than_a_head(port):
    body = b"".join(b"2328\r\n" + b" " * 0x2328 + b"\r\n" for _ in range(30)) + b"0\r\n\r\n"
    head = BODY.replace(b"/v1/models", b"/v1/completions").replace(
        b"\r\n\r\n", b"\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    )
    assert b"the body is not JSON" in asyncio.run(told(port, head, body, 1))


def test_a_client_of_http_1_0_gets_no_chunks(port):
    body = json.dumps({"prompt": "the cat", "max_tokens": 5, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
    kind = b"Connection: keep-alive\r\nContent-Type: application/json\r\n\r\n"
    head, _, told = asyncio.run(_answer(port, head.encode() + kind + body)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert all(event.startswith(b"data: ") for event in told.split(b"\n\n") if event)
    assert told.endswith(b"data: [DONE]\n\n")
    health = asyncio.run(_answer(port, b"GET /health HTTP/1.0\r\n\r\n"))
    assert health.endswith(b'{"status":"ok"}')


def test_requests_that_do_not_wait_for_answers_are_answered_in_turn(port):
    body = json.dumps({"prompt": "the cat", "max_tokens": 2, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    stream = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = HEAD + b"Connection: close\r\n\r\n"
    answers = asyncio.run(_answer(port, HEAD + b"\r\n" + stream + stream + last))
    parts = answers.split(b"HTTP/1.1 200 OK")[1:]
    assert [(b"ok" in part, b"[DONE]" in part) for part in parts] == [
        (True, False), (False, True), (False, True), (True, False),
    ]  # fmt: skip


async def _answer(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()
