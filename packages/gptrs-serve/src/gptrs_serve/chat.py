"""`/v1/chat/completions`: an answer to a conversation, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.quick_dataclass import dataclass
from gptrs.runtime.generation.generate import Generation
from gptrs.runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.answers import Envelope, finish_reason, usage
from gptrs_serve.bodies import ChatBody
from gptrs_serve.chunks import Chunks
from gptrs_serve.events import CLOSED_BY_CLIENT, EventStream, while_connected
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
        return EventStream(_events(body, begun), stream.cancel)
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


async def _events(body: ChatBody, begun: _Chat) -> AsyncGenerator[bytes]:
    """Yield the chunks of all answers: the role first, then texts, then the reason of the end."""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    more: dict[str, object] = {"usage": None} if with_usage else {}
    envelope = Envelope("chatcmpl", "chat.completion.chunk", begun.name)
    chunks = Chunks(envelope, lambda index, text: _delta(index, {"content": text}), **more)
    answers: Sequence[AnswerDeltas] = [AnswerDeltas(begun.tools) for _ in range(body.n)]
    for index in range(body.n):
        yield chunks.of([_delta(index, {"role": "assistant", "content": ""})])
    async for pieces in begun.metrics.measured(begun.stream):
        events = [
            event
            for piece in pieces
            for event in _piece_events(piece, answers[piece.index], chunks, body, begun)
        ]
        if events:
            yield b"".join(events)
    if with_usage:
        yield chunks.of([], usage=usage([begun.stream]))


def _piece_events(
    piece: Piece, answer: AnswerDeltas, chunks: Chunks, body: ChatBody, begun: _Chat
) -> Generator[bytes]:
    """Yield the chunks that a piece is."""
    if begun.tools is None and not body.logprobs and piece.finish_reason is None:
        if piece.text:
            yield chunks.text(piece.index, piece.text)
        return
    scores = {"content": begun.texts.chat(piece.scores)} if body.logprobs else None
    empty: list[dict[str, object]] = [{"content": ""}] if scores else []
    for delta in answer.of(piece) or empty:
        yield chunks.of([_delta(piece.index, delta, scores=scores)])
        scores = None
    if piece.finish_reason is not None:
        reason = finish_reason(piece.finish_reason, calls=answer.has_calls)
        yield chunks.of([_delta(piece.index, {}, reason)])


def _delta(
    index: int, delta: dict[str, object], reason: str | None = None, scores: object = None
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}
