"""`/v1/chat/completions`: an answer to a conversation, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.quick_dataclass import dataclass
from gptrs.runtime.generation.generate import Generation
from gptrs.runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.answers import Envelope, finish_reason, usage
from gptrs_serve.bodies import ChatBody
from gptrs_serve.chunks import Chunks
from gptrs_serve.events import CLOSED_BY_CLIENT, EventStream, QuickEvents, while_connected
from gptrs_serve.forms import form_of
from gptrs_serve.metrics import Metrics
from gptrs_serve.requests import chat_logprobs, chat_max_tokens, chat_messages, options_of
from gptrs_serve.served import Served
from gptrs_serve.token_texts import TokenTexts
from gptrs_serve.tools.deltas import AnswerDeltas, message_of
from gptrs_serve.tools.use import ToolUse, told_tools, tool_use


@dataclass(frozen=True)
class _Chat:
    """A conversation that the engine answers."""

    name: str
    stream: AnswerStream
    tools: ToolUse | None
    texts: TokenTexts
    metrics: Metrics


async def chat(request: Request, body: ChatBody, served: Served, metrics: Metrics) -> Response:
    """Answer a conversation; errors are those of the engine, and RequestError."""
    name, model = served.named(body.model, "causal_lm")
    tools = tool_use(body, model)
    form = await form_of(body, model, tools.grammar if tools else None)
    special = tools is not None and tools.shows_special
    options = options_of(body, model, chat_logprobs(body), form, special=special)
    asked = chat_max_tokens(body)
    tokens = await served.chat_tokens(model, chat_messages(body), told_tools(body))
    stream = served.submit(
        name,
        tokens,
        options,
        max_tokens=served.most_tokens(model, len(tokens), asked),
        answers=body.n,
        priority=body.priority,
    )
    begun = _Chat(name, stream, tools, served.texts_of(name), metrics)
    if body.stream:
        made = _Events(body, begun)
        quick = QuickEvents(made.of)
        return EventStream(_events(made, begun, quick), stream.cancel, quick)
    return await _whole(request, begun)


async def _whole(request: Request, begun: _Chat) -> Response:
    stream = begun.stream

    async def read() -> None:
        async for _ in begun.metrics.measured(stream):
            pass

    await while_connected(request, read(), stream.cancel)
    if any(not text.ended for text in stream.texts):
        return Response(status_code=CLOSED_BY_CLIENT)
    choices = [_choice(index, made, begun) for index, made in enumerate(stream.generations)]
    envelope = Envelope("chatcmpl", "chat.completion", begun.name)
    return JSONResponse(envelope.of(choices, usage=usage([stream])))


def _choice(index: int, made: Generation, begun: _Chat) -> dict[str, object]:
    message = message_of(made.text, begun.tools)
    scores = None if made.logprobs is None else {"content": begun.texts.chat(made.logprobs)}
    return {
        "index": index,
        "message": message,
        "logprobs": scores,
        "finish_reason": finish_reason(made.finish_reason, calls="tool_calls" in message),
    }


class _Events:
    """Encodes the pieces of all answers as events."""

    def __init__(self, body: ChatBody, begun: _Chat) -> None:
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        more: dict[str, object] = {"usage": None} if self._with_usage else {}
        envelope = Envelope("chatcmpl", "chat.completion.chunk", begun.name)
        self._chunks = Chunks(
            envelope, lambda index, text: _delta(index, {"content": text}), **more
        )
        self._answers = [AnswerDeltas(begun.tools) for _ in range(body.n)]
        self._begun = begun
        self._with_scores = body.logprobs

    def roles(self) -> bytes:
        """Return the events that come first."""
        role: dict[str, object] = {"role": "assistant", "content": ""}
        indices = range(len(self._answers))
        return b"".join([self._chunks.of([_delta(index, role)]) for index in indices])

    def of(self, pieces: Sequence[Piece]) -> bytes:
        """Return the events of pieces, empty if they have no text."""
        return b"".join([event for piece in pieces for event in self._of(piece)])

    def usage(self) -> bytes:
        """Return the event that tells how many tokens there were, empty unless asked for."""
        told = usage([self._begun.stream]) if self._with_usage else None
        return b"" if told is None else self._chunks.of([], usage=told)

    def _of(self, piece: Piece) -> Iterator[bytes]:
        """Yield the chunks that a piece is."""
        chunks, tools = self._chunks, self._begun.tools
        if tools is None and not self._with_scores and piece.finish_reason is None:
            if piece.text:
                yield chunks.text(piece.index, piece.text)
            return
        answer = self._answers[piece.index]
        scores = None
        if self._with_scores:
            scores = {"content": self._begun.texts.chat(piece.scores)}
        empty: list[dict[str, object]] = [{"content": ""}] if scores else []
        for delta in answer.of(piece) or empty:
            yield chunks.of([_delta(piece.index, delta, scores=scores)])
            scores = None
        if piece.finish_reason is not None:
            reason = finish_reason(piece.finish_reason, calls=answer.has_calls)
            yield chunks.of([_delta(piece.index, {}, reason)])


async def _events(made: _Events, begun: _Chat, quick: QuickEvents) -> AsyncGenerator[bytes]:
    """Yield the chunks of all answers, but for those that `quick` writes."""
    yield made.roles()
    async for pieces in begun.metrics.measured(begun.stream, quick):
        if events := made.of(pieces):
            yield events
    if told := made.usage():
        yield told


def _delta(
    index: int, delta: dict[str, object], reason: str | None = None, scores: object = None
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}
