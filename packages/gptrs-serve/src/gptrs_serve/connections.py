"""Connections of clients: their number, and deadlines for sending and reading."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, Protocol, cast
from weakref import WeakKeyDictionary

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from gptrs_serve.problems import RequestError

MOST_CONNECTIONS: Final = 4096
"""Concurrent connections; further ones get status 503."""
MOST_HEAD_SECONDS: Final = 30.0
"""Longest time for a head, from its first byte, and for the first byte of a connection."""
MOST_BODY_SECONDS: Final = 300.0
"""Longest time for a body."""
BODY_WINDOW_SECONDS: Final = 15.0
"""A body must bring `LEAST_BODY_BYTES` in each window, unless the server stopped reading."""
LEAST_BODY_BYTES: Final = 15_000
MOST_UNREAD_SECONDS: Final = 20.0
"""How long a client may read nothing while the buffers of its connection are full."""
HALF_CLOSED_SECONDS: Final = 0.5
"""How long an answer may take once its client sends no more, which may mean that it has gone."""
_READ_BYTES: Final = 16_384
"""Most bytes read at a time: as chunks of one byte they take 10 ms, in which others wait."""
_TICK_SECONDS: Final = 1.0
_Phase = Literal["head", "body", "answer"]
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_MALFORMED: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"


class Watch:
    """The connections of one server; about once a second, closes those past their deadline.

    One timer serves all: resetting a timer per portion of bytes would slow a stream by a tenth.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Watched) -> bool:
        """Watch a connection; False if there are too many."""
        if len(self._connections) >= MOST_CONNECTIONS:
            return False
        self._connections.add(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        return True

    def remove(self, connection: Watched) -> None:
        """Stop watching a connection."""
        self._connections.discard(connection)

    def _tick(self) -> None:
        now = time.monotonic()
        # A copy: closing removes a connection from the set while it is walked.
        for connection in list(self._connections):
            connection.check(now)
        self._timer = (
            self._loop.call_later(_TICK_SECONDS, self._tick) if self._connections else None
        )


_watches: WeakKeyDictionary[object, Watch] = WeakKeyDictionary()
"""Watches by the state of their server."""


class _Answering(Protocol):
    """The part of uvicorn's protocols that `Watched` continues."""

    def on_response_complete(self) -> None: ...


class Watched(asyncio.Protocol):
    """Deadlines for a protocol of uvicorn with either parser: heads, bodies, unread answers.

    A client that misses one is disconnected without an answer, which it would not read.
    """

    cycle: Any
    flow: Any
    loop: asyncio.AbstractEventLoop
    server_state: object
    transport: asyncio.Transport
    _watch: Watch | None = None
    _phase: _Phase = "head"
    _asked: Any = None
    """The request of the phase."""
    _since = 0.0
    """When the phase began."""
    _window = 0.0
    """When the window began in which `_came` bytes arrived."""
    _came = 0
    _unsent = 0
    _unread_since: float | None = None
    _is_half_closed = False

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's, not uvloop's
            self.transport.max_size = _READ_BYTES  # pyright: ignore[reportAttributeAccessIssue]
        # uvicorn makes a protocol object per connection and no object per server other than its
        # state.
        watch = _watches.setdefault(self.server_state, Watch(self.loop))
        self._since = self._window = time.monotonic()
        if watch.add(self):
            self._watch = watch
        else:
            self.transport.write(_BUSY)
            # Closed at once, it would be reset as soon as the request comes, and the answer lost.
            self.loop.call_later(_TICK_SECONDS, self.transport.close)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.remove(self)
        super().connection_lost(exc)

    @override
    def eof_received(self) -> bool:
        """Return whether to stay open for the answer: `nc -N` says that it has sent all."""
        self._see(time.monotonic())
        # TLS ends in both directions at once.
        stays = self._phase == "answer" and self.transport.get_extra_info("sslcontext") is None
        if stays:
            # The end of a program looks alike. What it has asked for must not run on for minutes.
            self.loop.call_later(HALF_CLOSED_SECONDS, self._give_up)
            self._is_half_closed = True
        return stays

    def _give_up(self) -> None:
        """End a connection whose client sends no more, if it waits for an answer still."""
        if not self.cycle.response_complete:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, in the format of other errors, and end."""
        cycle = self.cycle
        # Within an answer that has begun, its bytes would be taken for a part of it.
        if cycle is None or cycle.response_complete or not cycle.response_started:
            answer = RequestError(msg, code="malformed_request").response()
            fields = [b"%b: %b\r\n" % field for field in answer.raw_headers]
            self.transport.write(b"".join([_MALFORMED, *fields, b"\r\n", bytes(answer.body)]))
        self.transport.close()

    def on_response_complete(self) -> None:
        """Go on with the next request, or end."""
        cast("_Answering", super()).on_response_complete()
        if self._is_half_closed and self.cycle.response_complete:  # none is left in the pipeline
            self.transport.close()

    @override
    def data_received(self, data: bytes) -> None:
        if self._watch is None:  # it has been refused
            return
        super().data_received(data)
        self._see(time.monotonic())
        self._came += len(data)

    def _see(self, now: float) -> None:
        """Update the phase of the connection."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            phase: _Phase = "head"
        else:
            phase = "body" if cycle.more_body else "answer"
        if phase != self._phase or cycle is not self._asked:
            self._phase, self._asked = phase, cycle
            self._since = self._window = now
            self._came = 0

    def check(self, now: float) -> None:
        """Close the connection if it has taken too long."""
        self._see(now)
        if self.flow.write_paused:
            self._check_unread(now)
            return
        self._unread_since = None
        if self._phase == "head":
            # Of connections that stay open between two requests uvicorn closes the silent ones.
            waits = self._asked is not None and not self._came
            if waits:
                self._since = now
            elif now - self._since > MOST_HEAD_SECONDS:
                self.transport.close()
        elif self._phase == "body":
            self._check_body(now)

    def _check_body(self, now: float) -> None:
        if self.flow.read_paused:  # the server is slow, not the client
            self._window, self._came = now, 0
        elif now - self._since > MOST_BODY_SECONDS:
            self.transport.abort()
        # A rate per window, not an average: a client that sends fast at first and then a byte a
        # minute (slowloris) would live on its credit.
        elif now - self._window > BODY_WINDOW_SECONDS:
            if self._came < LEAST_BODY_BYTES:
                self.transport.abort()
            self._window, self._came = now, 0

    def _check_unread(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        # Any progress starts the time again: a slow link may take minutes for a long answer.
        if self._unread_since is None or unsent < self._unsent:
            self._unread_since = now
        elif now - self._unread_since > MOST_UNREAD_SECONDS:
            self.transport.abort()  # `close` would wait for what is not read
        self._unsent = unsent


# uvicorn declares that `eof_received` returns nothing; asyncio heeds what it returns.
class PlainConnection(Watched, H11Protocol):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A connection parsed by h11."""

    @override
    def _get_upgrade(self) -> bytes | None:
        """Return the protocol that a request offers and the server may take: none.

        For others, uvicorn would tell the operator to install a library of WebSockets.
        """
        return None


def http_protocol() -> type[asyncio.Protocol]:
    """Return the connection class: parsed by httptools if that is installed, else by h11."""
    if find_spec("httptools") is None:
        return PlainConnection
    # Imported late: httptools is optional.
    quick = import_module("gptrs_serve.quick_connections")
    return cast("type[asyncio.Protocol]", quick.Connection)
