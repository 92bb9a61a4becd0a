"""A small client of `/v1/completions`, for measurements: one connection, one stream at a time."""

from __future__ import annotations

import asyncio
import json
import time
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from typing_extensions import override

from gptrs.errors import ExecutionError, UsageError
from gptrs.quoting import clipped
from gptrs_observe.measure.serving_load import LoadRequest, TextTimes

# Read an HTTP/1.1 response from portions of bytes, with any framing.


_MOST_HEAD: Final = 65_536
_END: Final = b"\r\n\r\n"


class _Part(Enum):
    """Names the next bytes."""

    HEAD = 0
    SIZE = 1
    """The line before a chunk that says how long it is."""
    CHUNK = 2
    TRAILER = 3
    COUNTED = 4
    """A body of a stated length."""
    TO_THE_END = 5
    """A body that ends with the connection."""
    DONE = 6


class HttpAnswer:
    """Reads an answer; `status` is 0 until its head has come.

    `headers` have lower-case names. `kept` says whether the connection may be used again, once the
    answer is `complete`.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.kept = False
        self._part = _Part.HEAD
        self._held = b""
        """Bytes of a head or a line that is not complete."""
        self._left = 0
        """How many bytes of the body, or of the chunk and the line end after it, are to come."""

    @property
    def complete(self) -> bool:
        """Whether all of the answer has come."""
        return self._part is _Part.DONE

    @property
    def ends_with_connection(self) -> bool:
        """Whether the answer ends with the connection only."""
        return self._part is _Part.TO_THE_END

    def feed(self, data: bytes) -> bytes:
        """Read bytes; return those of the body. ExecutionError if they are not HTTP."""
        # The usual portion is exactly one chunk. The client shares the processor with the server,
        # so its own work must be small.
        if self._part is _Part.SIZE and not self._held:
            line, _, rest = data.partition(b"\r\n")
            if line.isalnum() and len(rest) > 2 and len(rest) == _size(line) + 2:
                return rest[:-2]  # one chunk, as most portions are
        data = self._held + data if self._held else data
        self._held = b""
        body: list[bytes] = []
        while data:
            if self._part is _Part.HEAD:
                data = self._head(data)
            elif self._part in (_Part.SIZE, _Part.TRAILER):
                data = self._line(data)
            elif self._part is _Part.CHUNK:
                portion, data = data[: self._left], data[self._left :]
                body.append(portion[: max(0, self._left - 2)])
                self._left -= len(portion)
                if not self._left:
                    self._part = _Part.SIZE
            elif self._part is _Part.COUNTED:
                body.append(data[: self._left])
                self._left -= len(body[-1])
                self._part = self._part if self._left else _Part.DONE
                data = b""
            else:
                body.append(data if self.ends_with_connection else b"")
                data = b""
        return b"".join(body)

    def end(self) -> None:
        """Note that the connection has ended."""
        if self.ends_with_connection:
            self._part = _Part.DONE

    def _head(self, data: bytes) -> bytes:
        """Read a head if it is complete; return the bytes that follow."""
        head, end, rest = data.partition(_END)
        if not end and len(data) <= _MOST_HEAD:
            self._held = data
            return b""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, reported = first.partition(" ")
        if not end or not version.startswith("HTTP/1.") or not reported[:3].isdigit():
            raise ExecutionError(f"the server does not speak HTTP/1.1: {clipped(first, 80)}")
        if reported.startswith("1"):  # the answer proper follows
            return rest
        self.status = int(reported[:3])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._frame(version)
        return rest

    def _frame(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        # HTTP/1.0 closes by default, HTTP/1.1 stays open.
        self.kept = connection == "keep-alive" if version == "HTTP/1.0" else connection != "close"
        length = self.headers.get("content-length", "")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._part = _Part.SIZE
        elif length.isdigit():
            self._left = int(length)
            self._part = _Part.COUNTED if self._left else _Part.DONE
        else:
            self.kept = False
            self._part = _Part.TO_THE_END

    def _line(self, data: bytes) -> bytes:
        """Read the size of a chunk, or a trailer after the last; return the bytes that follow."""
        line, end, rest = data.partition(b"\n")
        if not end:
            self._held = data
            return b""
        line = line.strip()
        if self._part is _Part.TRAILER:
            self._part = self._part if line else _Part.DONE
            return rest
        size = _size(line)
        self._left = size + 2
        self._part = _Part.CHUNK if size else _Part.TRAILER
        return rest


def _size(line: bytes) -> int:
    """Return the size before a chunk; ExecutionError if there is none."""
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise ExecutionError(f"the server sends a chunk of no size: {line[:40]!r}") from None


# The events of an answer of `/v1/completions`: when text came, and how many tokens.


_DONE: Final = "[DONE]"


class AnswerEvents:
    """Notes when events with text came; lines may end in LF, CR LF or CR, and be comments.

    Bytes are stored as they arrive, and parsed only when a result is requested, so that a client on
    the same processors takes no time from the server.
    """

    def __init__(self) -> None:
        self._portions: list[tuple[bytes, float]] = []
        self._came: list[float] = []
        self._done = False
        self._held = b""
        self._lines: list[str] = []
        """The data of an event that is not complete."""
        self._last = 0.0
        self._tokens: int | None = None
        self._reason: object = None

    def feed(self, data: bytes, now: float) -> None:
        """Add bytes that came at the time `now`."""
        self._portions.append((data, now))

    @property
    def done(self) -> bool:
        """Whether the event `[DONE]` has come; ExecutionError for an event of an error."""
        self._read()
        return self._done

    def _read(self) -> None:
        portions, self._portions = self._portions, []
        for data, now in portions:
            self._read_portion(data, now)

    def _read_portion(self, data: bytes, now: float) -> None:
        data = self._held + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._held = data[cut:]
        for line in data[:cut].splitlines():
            field, _, value = line.decode(errors="replace").partition(":")
            if field == "data":
                self._lines.append(value.removeprefix(" "))
            elif field == "error":
                raise _reported(value)
            elif not line and self._lines:
                self._take("\n".join(self._lines), now)
                self._lines.clear()

    def end(self) -> None:
        """Read the rest: the last event may lack its final empty line.

        ExecutionError for an event of an error.
        """
        self._read()
        self._read_portion(b"\n\n", self._last)

    def tokens(self, asked: int) -> int:
        """Return how many tokens the answer has, of the `asked` number.

        ExecutionError if its events show neither that nor that it has the requested length.
        """
        if self._tokens is not None:
            return self._tokens
        if self._reason == "length":
            return asked
        raise ExecutionError(
            "the server does not report the number of tokens of an answer in `usage`"
        )

    def times(self) -> list[float]:
        """Return the times of texts; the time of the last event if there were none."""
        return self._came or [self._last]

    def _take(self, data: str, now: float) -> None:
        if data == _DONE:
            self._done = True
            return
        event = _event(data)
        if event.error:
            raise _reported(event.error)
        self._last = now
        for choice in event.choices or ():
            if choice.text:
                self._came.append(now)
            self._reason = choice.finish_reason or self._reason
        if event.usage is not None:
            self._tokens = event.usage.completion_tokens


class _Choice(Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    completion_tokens: int


class _Event(Struct):
    """The fields that are read of an event."""

    error: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


def _event(data: str) -> _Event:
    try:
        return msgspec.json.decode(data, type=_Event)
    except msgspec.MsgspecError as error:
        raise ExecutionError(
            f"the server sends an event that is not read: {clipped(data, 80)} ({error})"
        ) from error


def _reported(error: object) -> ExecutionError:
    return ExecutionError(f"the server reports an error: {clipped(str(error).strip(), 300)}")


_MOST_TOLD: Final = 2000
"""Bytes of a refusal that are read."""


class StreamClient:
    """Sends requests to the server at `url`, `http://HOST:PORT`, over a persistent connection.

    Where the server has closed it in the meantime, the request is sent over another one.
    """

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"`{url}` is not an address of the form http://HOST:PORT")
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
            raise ExecutionError(f"{self._position} does not answer: {error}") from error
        except ExecutionError:
            self.close()
            raise
        if times is None:
            raise ExecutionError(f"{self._position} closes the connection without an answer")
        return times

    def close(self) -> None:
        """Close the connection."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    @property
    def _position(self) -> str:
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
        """Send a request for so many tokens; return the times of the answer, None if empty."""
        assert self._transport is not None
        self._answer, self._events, self._refusal = HttpAnswer(), AnswerEvents(), b""
        self._ended = asyncio.get_running_loop().create_future()
        sent = time.perf_counter() if sent is None else sent
        self._transport.write(data)
        if not await self._ended:
            return None
        if self._answer.status != 200:
            reported = clipped(self._refusal.decode(errors="replace"), 300)
            raise ExecutionError(f"the server answers {self._answer.status}: {reported}")
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
        if self._ended is None or self._ended.done():  # no request was sent
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
            reported = "" if exc is None else f": {exc}"
            problem = f"the server went away before the answer had ended{reported}"
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
