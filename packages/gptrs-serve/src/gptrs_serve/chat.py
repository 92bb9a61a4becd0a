"""`/v1/chat/completions`: an answer to a conversation, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.runtime.serving.answers import AnswerStream
from gptrs_serve.answers import Envelope, finish_reason, usage
from gptrs_serve.bodies import ChatBody
from gptrs_serve.events import CLOSED_BY_CLIENT, EventStream, while_connected
from gptrs_serve.forms import form_of
from gptrs_serve.metrics import Metrics
from gptrs_serve.requests import chat_logprobs, chat_max_tokens, chat_messages, options_of
from gptrs_serve.served import Served
from gptrs_serve.token_texts import TokenTexts


async def chat(request: Request, body: ChatBody, served: Served, metrics: Metrics) -> Response:
    """Answer a conversation; errors are those of the engine, and RequestError."""
    name, model = served.named(body.model, "causal_lm")
    form = await asyncio.to_thread(form_of, body, model)
    options = options_of(body, model, chat_logprobs(body), form)
    asked = chat_max_tokens(body)
    tokens = await served.tokens(model, chat_messages(body))
    stream = served.submit(
        name,
        tokens,
        options,
        max_tokens=served.most_tokens(model, len(tokens), asked),
        answers=body.n,
        priority=body.priority,
    )
    texts = served.texts_of(name)
    if body.stream:
        events = _events(body, name, stream, metrics, texts)
        return EventStream(events, stream.cancel)
    return await _whole(request, name, stream, metrics, texts)


async def _whole(
    request: Request, name: str, stream: AnswerStream, metrics: Metrics, texts: TokenTexts
) -> Response:
    async def read() -> None:
        async for _ in metrics.measured(stream):
            pass

    await while_connected(request, read(), stream.cancel)
    if any(not text.ended for text in stream.texts):
        return Response(status_code=CLOSED_BY_CLIENT)
    choices: list[dict[str, object]] = []
    for index, made in enumerate(stream.generations):
        scores = None if made.logprobs is None else {"content": texts.chat(made.logprobs)}
        message = {"role": "assistant", "content": made.text, "refusal": None}
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": scores,
                "finish_reason": finish_reason(made.finish_reason),
            }
        )
    envelope = Envelope("chatcmpl", "chat.completion", name)
    return JSONResponse(envelope.of(choices, usage=usage([stream])))


async def _events(
    body: ChatBody, name: str, stream: AnswerStream, metrics: Metrics, texts: TokenTexts
) -> AsyncGenerator[dict[str, object]]:
    """Yield the chunks of all answers: the role first, then texts, then the reason of the end."""
    envelope = Envelope("chatcmpl", "chat.completion.chunk", name)
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    more: dict[str, object] = {"usage": None} if with_usage else {}

    def chunk(
        index: int, delta: dict[str, object], reason: str | None = None, scores: object = None
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}
        return envelope.of([choice], **more)

    for index in range(body.n):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for piece in metrics.measured(stream):
        scores = {"content": texts.chat(piece.scores)} if body.logprobs else None
        if piece.text or scores:
            yield chunk(piece.index, {"content": piece.text}, scores=scores)
        if piece.finish_reason is not None:
            yield chunk(piece.index, {}, finish_reason(piece.finish_reason))
    if with_usage:
        yield envelope.of([], usage=usage([stream]))
