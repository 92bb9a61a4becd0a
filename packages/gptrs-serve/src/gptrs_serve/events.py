"""Streams of server-sent events, and whole answers, that end when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gptrs.api import EngineClosedError
from gptrs_runtime.serving.answers import Piece
from gptrs_serve.problems import problem_of
from gptrs_serve.requests import Envelope

_DONE = b"data: [DONE]\n\n"
Ending = Callable[[Exception | None], bytes]
"""Returns the last bytes of a stream, which an error may have cut."""


def _made(value: Any) -> object:
    """Return what a value of an answer that is made late stands for: a result, or rows."""
    return value() if callable(value) else list(value)


_encode = msgspec.json.Encoder(enc_hook=_made).encode
_MARK: Final = uuid.uuid4().hex
"""Stands in JSON for what is made late; nobody knows it before."""
_PORTION: Final = 100_000
"""Bytes of an answer that are made at a time."""
CLOSED_BY_CLIENT = 499
ENDING: Final = "the server shut down before the answer was complete"
_LAST_S: Final = 0.5
"""Longest time for the last event when the server shuts down."""
_MOST_ENTRIES: Final = 5_000
"""Most entries - choices, tokens, likeliest ones - that are told on the event loop: some 5 ms."""
WRITER: Final = "gptrs.writer"
"""The request extension with its `PartWriter`."""
Whole = TypeVar("Whole")


class PartWriter(Protocol):
    """Writes parts of an answer without a coroutine; `send` begins and ends it."""

    @property
    def ready(self) -> bool:
        """Whether the connection takes more bytes now."""
        ...

    def write(self, body: bytes) -> None:
        """Write a part that is not empty."""
        ...


class QuickEvents:
    """Writes the events of pieces in the notifying callback, so that no task has to wake.

    `encode` returns what the generator of an `EventStream` would yield, which must be waiting.
    """

    def __init__(self, encode: Callable[[Sequence[Piece]], bytes]) -> None:
        self._encode = encode
        self.writer: PartWriter | None = None
        """None if the connection has no writer."""

    def __call__(self, pieces: Sequence[Piece]) -> bool:
        """Return whether the pieces were written; if not, and for errors, the task handles them."""
        if self.writer is None or not self.writer.ready:
            return False
        if any(piece.error is not None for piece in pieces):
            return False
        # Called in the engine's callback on the event loop: waking a task instead costs 35 us more
        # a token (179 against 144 with 4 streams).
        if events := self._encode(pieces):
            self.writer.write(events)
        return True


def event_of(data: object, name: str = "") -> bytes:
    """Return an object as an event, optionally named."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + _encode(data) + b"\n\n"


def line_of(data: object) -> bytes:
    """Return an object as a line of JSON."""
    return _encode(data) + b"\n"


def done(error: Exception | None) -> bytes:
    """Return the end of OpenAI's streams; an error becomes an event, too."""
    return (b"" if error is None else event_of(problem_of(error).body())) + _DONE


class EventStream(Response):
    """Sends events as they come, one or several at once, and the result of `ending`.

    `events` is closed when the client disconnects, which must cancel the work. While it
    waits for pieces, `quick` may write them.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        ended: Callable[[], None],
        quick: QuickEvents | None = None,
        *,
        ending: Ending = done,
        media_type: str = "text/event-stream",
    ) -> None:
        self.media_type = media_type
        # nginx would collect the events until its buffer is full.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Starlette states 0 for an empty response, and clients would read no event.
        del self.headers["content-length"]
        self._events = events
        self._ended = ended
        self._quick = quick
        self._ending = ending
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events while the client listens."""
        if self._quick is not None:
            self._quick.writer = cast("PartWriter | None", scope.get("extensions", {}).get(WRITER))
        sending = asyncio.ensure_future(self._send(send))
        # Without it a client that hangs up while its text waits for a slot would be noticed at the
        # first write only.
        gone = asyncio.ensure_future(_disconnected(receive))
        cut = False
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the time of the last answers is over
            cut = True
        finally:
            for task in (sending, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task
            # Closed here, not by the garbage collector: the generator's `finally` cancels the text
            # and counts its tokens.
            await self._events.aclose()
            self._ended()
        if cut and self._begun:
            with contextlib.suppress(TimeoutError, OSError):
                await asyncio.wait_for(self._end(send, EngineClosedError(ENDING)), _LAST_S)

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._begun = True
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if isinstance(error, OSError):  # the client has gone
                raise
            await self._end(send, error)
        else:
            await self._end(send, None)

    async def _end(self, send: Send, error: Exception | None) -> None:
        body = self._ending(error)
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    request: Request, whole: Awaitable[Whole], cancel: Callable[[], None]
) -> Whole | None:
    """Return the result of `whole`; None, after `cancel`, if the client disconnects first."""
    working = asyncio.ensure_future(whole)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        if not working.done():
            cancel()
        # Awaiting a failed task again would change the traceback of its error.
        for task in [task for task in (working, gone) if not task.done()]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def for_client(request: Request, work: Awaitable[Whole]) -> Whole:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client leaves."""
    found = await while_connected(request, work, lambda: None)
    if found is None:
        raise ClientDisconnect
    return found


async def beside_streams(work: Callable[[], Whole], size: int) -> Whole:
    """Return the result of work on so many entries: of many in a thread, as it would stop streams.

    One `work` step that keeps the interpreter's lock, such as encoding, still does.
    """
    # Not in a pool that refuses work: this answer has been computed.
    return await asyncio.to_thread(work) if size > _MOST_ENTRIES else work()


async def whole_answer(
    envelope: Envelope,
    choices: Iterable[dict[str, object]],
    interventions: Sequence[dict[str, object]],
    usage: Callable[[], object],
    size: int,
    **more: object,
) -> Response:
    """Return an answer with these choices and, if any, interventions of each, and `more` fields.

    One with many entries is made in portions, beside streams, as its client reads it.
    """

    def told() -> Iterator[object]:
        for number, choice in enumerate(choices):
            if interventions:
                choice["interventions"] = interventions[number]
            yield choice

    # Encoded after the choices: thoughts are counted while they are made.
    return json_answer(envelope.of(told(), usage=usage, **more), size)


def json_answer(answer: object, size: int) -> Response:
    """Return an answer as JSON; one of many entries is made in portions, beside streams."""
    if size <= _MOST_ENTRIES:
        return Response(_encode(answer), media_type="application/json")
    return EventStream(
        _portions(answer), lambda: None, ending=_cut_off, media_type="application/json"
    )


async def _portions(answer: object) -> AsyncGenerator[bytes]:
    """Yield the JSON of an answer, some of it at a time."""
    parts = _parts(answer)

    def portion() -> bytes:
        taken, size = list[bytes](), 0
        for part in parts:
            taken.append(part)
            size += len(part)
            if size > _PORTION:
                break
        return b"".join(taken)

    # Not in a pool that refuses work: this answer has been computed.
    while found := await asyncio.to_thread(portion):
        yield found


def _parts(value: object) -> Iterator[bytes]:
    """Yield the JSON of a value; what is made late, as of `_made`, is made in its turn."""
    late: list[Any] = []

    def noted(value: object) -> str:
        late.append(value)
        return _MARK

    first, *others = msgspec.json.Encoder(enc_hook=noted).encode(value).split(_encode(_MARK))
    yield first
    for each, after in zip(late, others, strict=True):
        if callable(each):
            yield _encode(each())
        elif isinstance(each, array):
            numbers = cast("array[int]", each)
            yield b"["
            for at in range(0, len(numbers), _MOST_ENTRIES):
                some = numbers[at : at + _MOST_ENTRIES].tolist()
                yield (b"," if at else b"") + _encode(some)[1:-1]
            yield b"]"
        else:
            before = b"["
            for row in each:
                yield before
                yield from _parts(row)
                before = b","
            yield b"[]" if before == b"[" else b"]"
        yield after


def _cut_off(error: Exception | None) -> bytes:
    """Return the end of a whole answer: nothing; an error closes its connection within it."""
    if error is not None:
        problem_of(error)  # which logs a fault of the server
        raise ConnectionAbortedError from error
    return b""


# The chunks of a stream as events; the common part is encoded once.


class Chunks:
    """Encodes chunks with the fields of `envelope`, and `more` of them.

    `choice` returns the choice that adds a text to answer `index`, without scores or an end.
    """

    def __init__(
        self,
        envelope: Envelope,
        choice: Callable[[int, str], dict[str, object]],
        **more: object,
    ) -> None:
        self._envelope = envelope
        self._choice = choice
        self._more = more
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """The bytes before and after the text of an answer."""

    def of(self, choices: Sequence[dict[str, object]], **more: object) -> bytes:
        """Return the event of a chunk with these choices."""
        return event_of(self._envelope.of(choices, **self._more | more))

    def text(self, index: int, text: str) -> bytes:
        """Return the event of a chunk that adds a text to an answer."""
        known = self._around.get(index)
        if known is None:
            # The JSON around a text is found by encoding a unique mark once, so no field order is
            # written twice in this code.
            mark = uuid.uuid4().hex
            before, _, after = self.of([self._choice(index, mark)]).partition(_encode(mark))
            known = self._around[index] = before, after
        return known[0] + _encode(text) + known[1]
