"""Connections of clients that send no end of a head or body, in bytes or in time, or read none."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import socket
import weakref

import pytest

from gptrs_serve import connections, problems
from gptrs_serve.app import Access
from runtime.serving_models import eventually
from serve.clients import held
from serve.conftest import serving

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module", params=["httptools", "h11"])
def port(model, request):
    """The port of a server with either parser."""
    if request.param == "httptools":
        pytest.importorskip("httptools", reason="httptools is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "h11":
            patch.setattr(connections, "find_spec", lambda name: None)
        with serving({"tiny": model}) as (address, _):
            yield int(address.rsplit(":", 1)[1])


@pytest.fixture
def quick(monkeypatch):
    """Deadlines that are over soon."""
    hurry(monkeypatch)


def hurry(monkeypatch):
    for name in ("_TICK", "MOST_HEAD", "BODY_WINDOW", "MOST_UNREAD"):
        monkeypatch.setattr(connections, f"{name}_SECONDS", 0.2)


async def told(port, first, portion=b"", portions=0):
    """Return what the server answers until it closes the connection, which it may do at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        for _ in range(portions):
            await asyncio.sleep(0.002)  # the server reads each by itself
            writer.write(portion)
        return await asyncio.wait_for(reader.read(), 120)
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
def test_a_head_may_not_take_for_ever(port, first, quick):
    assert asyncio.run(told(port, first)) == b""


def test_a_second_head_may_not_take_for_ever(port, monkeypatch):
    async def answers():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n" + HEAD)
        await reader.readuntil(b'"ok"}')
        hurry(monkeypatch)
        more = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        return more

    assert asyncio.run(answers()) == b""


STATED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 3999999\r\n\r\n"
)
CHUNKED = STATED.replace(b"Content-Length: 3999999", b"Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("first", "portion"),
    [(STATED, b""), (STATED + b"{", b" "), (CHUNKED + b"1\r\n{\r\n", b"1\r\n \r\n")],
)
def test_a_body_that_comes_too_slowly_is_cut(port, first, portion, quick):
    with socket.create_connection(("127.0.0.1", port), 120) as client:
        client.sendall(first)
        client.settimeout(0.02)
        eventually(lambda: _is_cut(client, portion))


def _is_cut(client, portion):
    try:
        if portion:
            client.sendall(portion)
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_held_bodies_take_bounded_memory_together(port, monkeypatch):
    """And one that is too much is told so once it has come; small ones pass."""
    monkeypatch.setattr(problems, "MOST_BYTES_IN_FLIGHT", 500_000)
    with socket.create_connection(("127.0.0.1", port), 120) as held:
        held.sendall(STATED + b" " * 400_000)
        eventually(lambda: problems._in_flight[0] == 400_000)
        assert b" 503 " in asyncio.run(_answer(port, _body(b" " * 200_000)))
        small = json.dumps({"prompt": "the cat", "max_tokens": 1}).encode()
        assert b" 200 " in asyncio.run(_answer(port, _body(small)))
    eventually(lambda: problems._in_flight[0] == 0)
    assert b"not JSON" in asyncio.run(_answer(port, _body(b" " * 200_000)))


def _body(body):
    stated = b"Connection: close\r\nContent-Length: %d" % len(body)
    return STATED.replace(b"Content-Length: 3999999", stated) + body


@pytest.mark.long
def test_a_stream_that_nobody_reads_is_cut(model, monkeypatch):
    with serving({"tiny": model}, most_output=4000) as (address, engine):
        body = json.dumps(
            {"prompt": "the cat", "n": 64, "ignore_eos": True, "stream": True, "logprobs": 5}
        ).encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", int(address.rsplit(":", 1)[1])))
            client.sendall(_body(body))
            eventually(lambda: engine.state().steps > 3)
            hurry(monkeypatch)
            eventually(lambda: engine.state().requests == 0)


def test_one_connection_too_many_is_told_to_come_again(port, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 0)
    assert b" 503 " in asyncio.run(_answer(port, HEAD + b"\r\n"))


@pytest.mark.parametrize("first", [b"no request\r\n\r\n", BODY + b"x\r\n"])
def test_what_is_no_request_is_refused_like_a_bad_one(port, first):
    head, _, body = asyncio.run(told(port, first)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["error"]["code"] == "malformed_request"


def test_a_client_gets_little_time_at_once(port, monkeypatch):
    read = []
    received = connections.Watched.data_received

    def noted(connection, data):
        read.append(len(data))
        received(connection, data)

    monkeypatch.setattr(connections.Watched, "data_received", noted)
    assert b"not JSON" in asyncio.run(_answer(port, _body(b" " * 200_000)))
    assert sum(read) > 200_000
    assert max(read) <= 16_384


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
    assert b"connection: close" in head.lower()
    assert all(event.startswith(b"data: ") for event in told.split(b"\n\n") if event)
    assert told.endswith(b"data: [DONE]\n\n")
    health = asyncio.run(_answer(port, b"GET /health HTTP/1.0\r\n\r\n"))
    assert health.endswith(b'{"status":"ok"}')


def test_a_client_that_sends_no_more_is_answered(port, monkeypatch):
    """As `nc -N` does not; if the answer takes long, its client counts as gone."""
    monkeypatch.setattr(connections, "HALF_CLOSED_SECONDS", 120)
    two = HEAD + b"\r\n" + HEAD.replace(b"/health", b"/v1/models") + b"\r\n"
    told = asyncio.run(_answer(port, two, half=True))
    assert told.count(b" 200 OK") == 2
    assert told.index(b'"ok"') < told.index(b'"tiny"')
    old = b"GET /health HTTP/1.0\r\n\r\n"
    assert asyncio.run(_answer(port, old, half=True)).endswith(b'"ok"}')
    assert asyncio.run(_answer(port, HEAD, half=True)) == b""


def test_a_client_that_sends_no_more_is_not_waited_for(model, monkeypatch):
    monkeypatch.setattr(connections, "HALF_CLOSED_SECONDS", 0.0)
    with serving({"tiny": model}) as (address, engine), held(engine):
        body = _body(json.dumps({"prompt": "the cat", "max_tokens": 5}).encode())
        assert asyncio.run(_answer(int(address.rsplit(":", 1)[1]), body, half=True)) == b""


def test_a_client_of_http_1_0_need_not_name_a_host(model):
    """Unlike one of HTTP/1.1: any browser names one, and pages of other sites are refused by it."""
    with serving({"tiny": model}, Access(hosts=["localhost"])) as (address, _):
        at = int(address.rsplit(":", 1)[1])
        old = b"GET /health HTTP/1.0\r\n"
        assert b" 200 OK" in asyncio.run(_answer(at, old + b"\r\n"))
        assert b" 403 " in asyncio.run(_answer(at, old + b"Host: evil.example\r\n\r\n"))
        new = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert b" 40" in asyncio.run(_answer(at, new))[:12]


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


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_request_that_offers_another_protocol_keeps_its_body(port, is_chunked, caplog):
    """Java's HttpClient offers h2c with each request."""
    body = json.dumps({"prompt": "the cat", "max_tokens": 2, "seed": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
    framed = b"Content-Length: %d\r\n\r\n" % len(body) + body
    if is_chunked:
        framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    socket_offer = HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    last = HEAD + b"Connection: close\r\n\r\n"
    answers = asyncio.run(_answer(port, 2 * (head + offer + framed) + socket_offer + last))
    parts = answers.split(b"HTTP/1.1 200 OK")[1:]
    assert [b"text_completion" in part for part in parts] == [True, True, False, False]
    portions = [head + offer + framed[:-9], framed[-9:], last]
    answers = asyncio.run(_answer(port, *portions))
    assert b"text_completion" in answers
    assert b'{"status":"ok"}' in answers
    assert "WebSocket" not in caplog.text  # no advice to install a library of these


def test_a_connection_that_is_lost_is_freed_at_once(model, monkeypatch):
    """Not by the garbage collector: it holds a body of megabytes."""
    pytest.importorskip("httptools", reason="httptools is not installed")
    quick = importlib.import_module("gptrs_serve.quick_connections")
    made = []

    class Noted(quick.Connection):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr(quick, "Connection", Noted)
    monkeypatch.setattr(connections, "find_spec", bool)  # `port` may hide it still
    gc.disable()
    try:
        with serving({"tiny": model}) as (address, _):
            at = int(address.rsplit(":", 1)[1])
            offer = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            last = HEAD + b"Connection: close\r\n\r\n"
            assert asyncio.run(_answer(at, offer + last)).count(b" 200 OK") == 2
            eventually(lambda: made and all(each() is None for each in made))
    finally:
        gc.enable()


async def _answer(port, *data, half=False):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for portion in data:
            writer.write(portion)
            await asyncio.sleep(0)
        if half:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.close()
