"""Requests passed on to a replica, whose answers come back as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, cast

from msgspec import Struct
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from gptrs_ray.serving.affinity import beginnings, fields_of, response_of
from gptrs_serve.app import Access
from gptrs_serve.events import CLOSED_BY_CLIENT, event_of, line_of
from gptrs_serve.keys import KeyRing
from gptrs_serve.problems import Guard, RequestError, read_bytes

_SCOPE: Final = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)
"""The parts of a request's scope that are data."""
_METHODS: Final = ("GET", "POST", "DELETE", "OPTIONS", "PUT", "PATCH")
_LAST_S: Final = 5.0
"""How long an application may take to end after its client has gone."""
_logger = logging.getLogger("gptrs")
Begin = tuple[int, list[tuple[bytes, bytes]]]
"""Status and headers of an answer."""


class Asked(Struct, frozen=True):
    """A request as a replica gets it, and what its prompt shares with others."""

    scope: dict[str, Any]
    body: bytes
    beginnings: tuple[bytes, ...]
    response: str
    """The id of the stored response that it names."""


async def answered(app: ASGIApp, asked: Asked) -> AsyncGenerator[Begin | bytes]:
    """Yield the answer of an application: status and headers, then the body as it is written.

    Closing the generator tells the application that the client has gone.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    gone = asyncio.Event()
    unread: list[Message] = [{"type": "http.request", "body": asked.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    scope: dict[str, Any] = {**asked.scope, "extensions": {}, "state": {}}
    task = asyncio.ensure_future(app(scope, receive, messages.put))
    task.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                yield message["status"], list(message.get("headers", ()))
                continue
            parts = [message.get("body", b"")]
            # Together, as each item that a replica yields is an object of Ray.
            while not messages.empty() and (more := messages.get_nowait()) is not None:
                parts.append(more.get("body", b""))
            if joined := b"".join(parts):
                yield joined
            if task.done():
                break
        await task
    finally:
        gone.set()
        await asyncio.wait([task], timeout=_LAST_S)  # it cancels its text, and counts it
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def door(replicas: Any, keys: tuple[str, ...]) -> Starlette:
    """Return the application before the replicas, which passes requests on.

    `replicas` is the handle whose method `answer` is `answered` of a replica. Keys are checked
    here, too, before a body is read.
    """

    async def passed_on(request: Request) -> Response:
        try:
            body = bytes(await read_bytes(request, Access().most_body_bytes))
        except RequestError as error:
            return error.response(request.url.path)
        except ClientDisconnect:
            return Response(status_code=CLOSED_BY_CLIENT)
        scope = {name: request.scope[name] for name in _SCOPE if name in request.scope}
        fields = fields_of(body)
        named = response_of(request.url.path, fields)
        asked = Asked(scope, body, beginnings(fields), named)
        stream = replicas.options(method_name="answer", stream=True).remote(asked)
        return await _answer(stream, request.url.path)

    route = Route("/{path:path}", passed_on, methods=_METHODS)
    return Starlette(
        routes=[route], middleware=[Middleware(Guard, keys=KeyRing.of(keys), hosts=())]
    )


async def _answer(stream: Any, path: str) -> Response:
    """Return the answer of a replica; status 503 if it ended before the first byte."""
    parts = cast("AsyncIterator[Begin | bytes]", aiter(stream))
    try:
        status, headers = cast("Begin", await anext(parts))
    except (RayError, RayServeException) as error:
        return _lost(error).response(path)
    except asyncio.CancelledError:
        stream.cancel()
        raise
    kind = dict(headers).get(b"content-type", b"").decode("latin-1")

    async def rest() -> AsyncGenerator[bytes]:
        ended = False
        try:
            async for part in parts:
                yield cast("bytes", part)
            ended = True
        except (RayError, RayServeException) as error:
            ended = True
            told = _lost(error).body(path)
            if kind.startswith("text/event-stream"):
                yield event_of(told, "error")
            elif kind.startswith("application/x-ndjson"):
                yield line_of(told)
            else:  # the connection ends before the length that was promised
                raise
        finally:
            if not ended:
                stream.cancel()

    response = StreamingResponse(rest(), status)
    response.raw_headers = headers
    return response


def _lost(error: Exception) -> RequestError:
    _logger.error("a replica failed: %s", type(error).__name__)
    told = "the replica that had this request has ended; try it again"
    return RequestError(told, status=503, code="lost")
