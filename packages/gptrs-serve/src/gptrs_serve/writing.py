"""One answer in the format of a protocol, streamed or whole, by the same code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from gptrs_runtime.chat.answer_reader import AnswerEvent, ThoughtsDelta
from gptrs_runtime.generation.outcome import FinishReason
from gptrs_runtime.generation.text_stream import TokenScores
from gptrs_runtime.serving.answers import Piece
from gptrs_serve.chat import Chat
from gptrs_serve.events import CLOSED_BY_CLIENT, EventStream, QuickEvents, json_answer
from gptrs_serve.requests import require_written


class AnswerWriter(ABC):
    """Writes the single answer of a chat; `told` handles each event and yields its bytes.

    A whole answer is built from the same events.
    """

    media_type = "text/event-stream"

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.reader = chat.new_reader()
        self.reason: FinishReason | None = None
        """The finish reason; None before the end."""
        self.keep: Callable[[], None] | None = None
        """Called once the answer is whole."""
        self.scores: list[TokenScores] = []
        """Requested ones that `told` and `end` have not written."""

    @abstractmethod
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        """Handle an event, and yield its bytes for a stream."""

    def begin(self) -> bytes:
        """Return the first bytes of a stream."""
        return b""

    @abstractmethod
    def end(self) -> bytes:
        """Complete the answer, and return the last bytes of a stream."""

    @abstractmethod
    def failed(self, error: Exception) -> bytes:
        """Return the bytes of a stream for an error that ends it."""

    @abstractmethod
    def whole(self) -> dict[str, object]:
        """Return the answer, after `end`."""

    def of(self, pieces: Sequence[Piece]) -> bytes:
        """Return the bytes of a stream for pieces; empty if they have no text."""
        parts: list[bytes] = []
        for piece in pieces:
            self.scores += piece.scores
            found = self.reader.push(piece.text)
            if piece.finish_reason is not None:
                found += self.reader.finish()
                self.reason = piece.finish_reason
            for event in found:
                if self.chat.shows_thoughts or not isinstance(event, ThoughtsDelta):
                    parts.extend(self.told(event))
        return b"".join(parts)

    def _ended(self) -> bytes:
        ended = self.end()
        if self.keep is not None:
            # After `end`, and only then: an answer that fails or is cut off must not be found by
            # `previous_response_id`.
            self.keep()
        return ended

    async def _events(self, quick: QuickEvents) -> AsyncGenerator[bytes]:
        """Yield the bytes of a stream that `quick` does not write."""
        if begun := self.begin():
            yield begun
        async for pieces in self.chat.metrics.measured(self.chat.stream, quick):
            if events := self.of(pieces):
                yield events
            require_written(pieces)
        yield self._ended()

    async def answer(self, request: Request, *, stream: bool) -> Response:
        """Return the answer, whole or as a stream."""
        chat = self.chat
        if stream:
            quick = QuickEvents(self.of)
            return EventStream(
                self._events(quick),
                chat.stream.cancel,
                quick,
                ending=lambda error: b"" if error is None else self.failed(error),
                media_type=self.media_type,
            )
        if not await chat.is_whole(request):
            return Response(status_code=CLOSED_BY_CLIENT)
        (made,) = chat.stream.generations
        # A whole answer goes the way of a stream, so that both have the same items.
        scores = made.logprobs or ()
        self.of([Piece(0, made.text, made.token_ids, scores, made.finish_reason)])
        self._ended()
        return json_answer(self.whole(), sum(1 + len(each.top) for each in scores))
