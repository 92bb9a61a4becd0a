"""A small client of `/v1/completions`, for measurements: one connection, one stream at a time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import override

from gptrs.errors import ExecutionError, UsageError
from gptrs.quoting import clipped
from gptrs_observe.measure.answer_events import AnswerEvents
from gptrs_observe.measure.http_answer import HttpAnswer
from gptrs_observe.measure.serving_load import LoadRequest, TextTimes

_MOST_TOLD: Final = 2000
"""Bytes of a refusal that are read."""


class StreamClient:
    """Asks the server at `url`, of the form `http://HOST:PORT`, over a connection that it keeps.

    Where the server has closed it in the meantime, the request is sent over another one.
    """

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"`{url}` is no address of the form http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._model, self._key = model, key
        self._pipe: _Pipe | None = None

    async def ask(self, request: LoadRequest) -> TextTimes:
        """Return the times of the answer; ExecutionError if the server refuses or goes away."""
        data = self._request(request)
        try:
            if self._pipe is not None and self._pipe.is_open:
                times = await self._pipe.ask(data, request.new_tokens)
                if times is not None:
                    return times
            loop = asyncio.get_running_loop()
            sent = time.perf_counter()
            self._pipe = (await loop.create_connection(_Pipe, self._host, self._port))[1]
            times = await self._pipe.ask(data, request.new_tokens, sent)
        except OSError as error:
            raise ExecutionError(f"{self._place} does not answer: {error}") from error
        except ExecutionError:
            self.close()
            raise
        if times is None:
            raise ExecutionError(f"{self._place} closes the connection without an answer")
        return times

    def close(self) -> None:
        """Close the connection."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    @property
    def _place(self) -> str:
        return f"the server at {self._host} port {self._port}"

    def _request(self, request: LoadRequest) -> bytes:
        fields: dict[str, object] = {
            "prompt": list(request.tokens),
            "max_tokens": request.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            fields["model"] = self._model
        body = json.dumps(fields).encode()
        lines = [
            "POST /v1/completions HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if self._key is not None:
            lines.append(f"Authorization: Bearer {self._key}")
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Pipe(asyncio.Protocol):
    """A connection. It reads in the callback that brings bytes, so that no task must wake."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._answer = HttpAnswer()
        self._events = AnswerEvents()
        self._refusal = b""
        self._ended: asyncio.Future[bool] | None = None
        """Whether there was an answer."""

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, data: bytes, tokens: int, sent: float | None = None) -> TextTimes | None:
        """Send a request for so many tokens; return the times of the answer, None without any."""
        assert self._transport is not None
        self._answer, self._events, self._refusal = HttpAnswer(), AnswerEvents(), b""
        self._ended = asyncio.get_running_loop().create_future()
        sent = time.perf_counter() if sent is None else sent
        self._transport.write(data)
        if not await self._ended:
            return None
        if self._answer.status != 200:
            told = clipped(self._refusal.decode(errors="replace"), 300)
            raise ExecutionError(f"the server answers {self._answer.status}: {told}")
        if not self._answer.kept:
            self.close()
        return TextTimes(sent, self._events.times(), self._events.tokens(tokens))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._ended is None or self._ended.done():  # nothing was asked for
            self.close()
            return
        try:
            self._read(data, now)
        except ExecutionError as error:
            self._ended.set_exception(error)
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        self._answer.end()
        if self._answer.complete:
            self._end()
        elif not self._answer.status:
            self._ended.set_result(False)
        else:
            told = "" if exc is None else f": {exc}"
            problem = f"the server went away before the answer had ended{told}"
            self._ended.set_exception(ExecutionError(problem))

    def _read(self, data: bytes, now: float) -> None:
        begins = not self._answer.status
        body = self._answer.feed(data)
        if self._answer.status not in (0, 200):
            self._refusal += body
        else:
            if begins and self._answer.status:
                self._require_events()
            if body:
                self._events.feed(body, now)
        closes = self._answer.ends_with_connection and self._events.done
        if self._answer.complete or closes or len(self._refusal) > _MOST_TOLD:
            self._end()

    def _require_events(self) -> None:
        kind = self._answer.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise ExecutionError(f"the server answers with {kind or 'no type'}, not with a stream")

    def _end(self) -> None:
        assert self._ended is not None
        try:
            self._events.end()
        except ExecutionError as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(True)
