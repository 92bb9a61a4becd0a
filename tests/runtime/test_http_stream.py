"""The client of measurements reads the streams of servers as they come."""

from __future__ import annotations

import asyncio
import json

import pytest

from gptrs.errors import ExecutionError
from gptrs_observe.measure.http_stream import AnswerEvents, HttpAnswer, StreamClient
from gptrs_observe.measure.serving_load import LoadRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
REQUEST = LoadRequest([1, 2], 3)


def event(text=None, reason=None, end="\n", **more):
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": reason}]
    return f"data: {json.dumps({'choices': choices, **more})}{end}{end}".encode()


def chunked(*bodies, extension=b"", trailer=b""):
    chunks = [b"%x%s\r\n%s\r\n" % (len(body), extension, body) for body in bodies]
    return (
        HEAD
        + b"Transfer-Encoding: Chunked\r\n\r\n"
        + b"".join(chunks)
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


USAGE = event(usage={"completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
BODY = event("a") + event("b") + event("c", "length") + USAGE + DONE
CLOSING = HEAD.replace(b"/1.1", b"/1.0") + b"\r\n"
FORMS = {
    "a chunk for each event": chunked(event("a"), event("b"), event("c", "length"), USAGE, DONE),
    "chunks that cut events": chunked(BODY[:5], BODY[5:70], BODY[70:]),
    "extensions and trailers": chunked(BODY, extension=b";x=1", trailer=b"X-Time: 1\r\n"),
    "a length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "until the connection ends": CLOSING + BODY,
    "without [DONE]": CLOSING + BODY.removesuffix(DONE).rstrip(),
    "lines of CR LF": chunked(BODY.replace(b"\n", b"\r\n")),
    "lines of CR": chunked(BODY.replace(b"\n", b"\r")),
    "comments and other fields": chunked(b": ping\n\nid: 1\nretry: 9\n" + BODY + b":\n\n"),
    "events without texts": chunked(event(""), BODY.replace(USAGE, b""), event("", usage=None)),
    "usage in the last text": chunked(
        event("a"), event("b", usage=None), event("c", "stop", usage={"completion_tokens": 3})
    ),
    "no usage, but as long as asked": chunked(BODY.replace(USAGE, b"")),
    "an answer ahead": b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(BODY),
}


async def ask(answers, size=None, requests=1):
    """Ask a server that gives one of `answers` for each connection, in portions of `size`."""
    waiting = list(answers)

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        answer = waiting.pop(0)
        for at in range(0, len(answer), size or len(answer)):
            writer.write(answer[at : at + (size or len(answer))])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = StreamClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        found = [await client.ask(REQUEST) for _ in range(requests)]
        client.close()
    return found


@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("form", FORMS)
def test_answers_of_each_form(form, size):
    (times,) = asyncio.run(ask([FORMS[form]], size))
    assert times.tokens == 3
    assert len(times.came) == 3
    assert times.sent <= times.came[0] <= times.came[-1]


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_in_single_bytes(form):
    answer, events = HttpAnswer(), AnswerEvents()
    for at, byte in enumerate(FORMS[form]):
        events.feed(answer.feed(bytes([byte])), at)
    answer.end()
    events.end()
    assert (answer.complete, events.tokens(3), len(events.times())) == (True, 3, 3)


def test_a_connection_that_was_closed_in_the_meantime_is_opened_again():
    answer = FORMS["a chunk for each event"]
    assert len(asyncio.run(ask([answer, answer], requests=2))) == 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "closes the connection without an answer"),
        (FORMS["a length"][:-40], "went away before the answer had ended"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP/1.1: SSH-2.0"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n{'error': 'no'}", "the server answers 400: {'error'"),
        (HEAD.replace(b"text/event-stream", b"application/json") + b"\r\n{}", "not with a stream"),
        (
            chunked(event("a"), b'data: {"error": {"message": "full"}}\n\n'),
            "reports an error: {'mess",
        ),
        (chunked(b'error: {"message": "full"}\n\n'), "reports an error"),
        (chunked(event("a", "stop"), DONE), "does not report the number of tokens"),
        (chunked(b"data: [1]\n\n"), "an event that is not read: [1]"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nlong\r\n", "a chunk of no size: b'long'"),
    ],
)  # fmt: skip
def test_what_a_server_did_is_told(answer, told):
    with pytest.raises(ExecutionError, match=told.replace("{", r"\{").replace("[", r"\[")):
        asyncio.run(ask([answer]))
