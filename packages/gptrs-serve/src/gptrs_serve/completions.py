"""`/v1/completions`: continuations of prompts, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.quick_dataclass import dataclass
from gptrs.runtime.generation.generate import TokenScores
from gptrs.runtime.loaded_model import LoadedModel
from gptrs.runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.answers import Envelope, finish_reason, usage
from gptrs_serve.bodies import CompletionBody
from gptrs_serve.chunks import Chunks
from gptrs_serve.events import CLOSED_BY_CLIENT, EventStream, QuickEvents, while_connected
from gptrs_serve.forms import form_of
from gptrs_serve.metrics import Metrics
from gptrs_serve.requests import options_of, prompts_of, require_fitting
from gptrs_serve.served import Served
from gptrs_serve.token_texts import TokenTexts


@dataclass(frozen=True)
class _Prompt:
    """A prompt, its answers if any are asked for, and what is echoed of it."""

    tokens: list[int]
    stream: AnswerStream | None
    text: str
    scores: list[TokenScores | None] | None


async def completions(
    request: Request, body: CompletionBody, served: Served, metrics: Metrics
) -> Response:
    """Continue each prompt; errors are those of the engine, and RequestError."""
    require_fitting(body)
    name, model = served.named(body.model, "causal_lm")
    prompts: list[_Prompt] = []

    def cancel() -> None:
        for prompt in prompts:
            if prompt.stream is not None:
                prompt.stream.cancel()

    try:
        for given in prompts_of(body):
            prompts.append(await _asked(body, name, model, given, served))
    except BaseException:
        cancel()
        raise
    texts = served.texts_of(name)
    if body.stream:
        made = _Events(body, name, prompts, texts)
        quick = QuickEvents(lambda pieces: made.of(0, pieces))
        return EventStream(_events(made, prompts, metrics, quick), cancel, quick)
    return await _whole(request, body, name, prompts, metrics, texts)


async def _asked(
    body: CompletionBody, name: str, model: LoadedModel, given: str | list[int], served: Served
) -> _Prompt:
    """Submit a prompt, once its own tokens have been scored where that is asked for."""
    form = await form_of(body, model)
    options = options_of(body, model, body.logprobs, form)
    tokens = list(await served.tokens(model, given))
    text, scores = "", None
    if body.echo:
        text = given if isinstance(given, str) else _decoded(model, tokens)
        if body.logprobs is not None:
            scores = await served.prompt_scores(model, tokens, body.logprobs)
    if body.max_tokens == 0:
        return _Prompt(tokens, None, text, scores)
    stream = served.submit(
        name,
        tokens,
        options,
        max_tokens=served.most_tokens(model, len(tokens), body.max_tokens),
        answers=body.n,
        priority=body.priority,
    )
    return _Prompt(tokens, stream, text, scores)


def _decoded(model: LoadedModel, tokens: Sequence[int]) -> str:
    return model.tokenizer.decode(tokens, special=True) if model.has_tokenizer else ""


async def _whole(
    request: Request,
    body: CompletionBody,
    name: str,
    prompts: Sequence[_Prompt],
    metrics: Metrics,
    texts: TokenTexts,
) -> Response:
    streams = [prompt.stream for prompt in prompts if prompt.stream is not None]

    async def read(stream: AnswerStream) -> None:
        async for _ in metrics.measured(stream):
            pass

    async def read_all() -> None:
        await asyncio.gather(*(read(stream) for stream in streams))

    def cancel_all() -> None:
        for stream in streams:
            stream.cancel()

    await while_connected(request, read_all(), cancel_all)
    if any(not text.ended for stream in streams for text in stream.texts):
        return Response(status_code=CLOSED_BY_CLIENT)
    choices: list[dict[str, object]] = []
    for prompt in prompts:
        choices.extend(_choices(body, prompt, texts, len(choices)))
    envelope = Envelope("cmpl", "text_completion", name)
    return JSONResponse(envelope.of(choices, usage=_usage(prompts)))


def _choices(
    body: CompletionBody, prompt: _Prompt, texts: TokenTexts, first: int
) -> list[dict[str, object]]:
    """Return the choices of one prompt."""
    echoed = prompt.tokens if body.echo else []
    if prompt.stream is None:
        scores = None if prompt.scores is None else texts.completion(prompt.scores, echoed, 0)
        return [_choice(first + n, prompt.text, scores, "length") for n in range(body.n)]
    choices: list[dict[str, object]] = []
    for made in prompt.stream.generations:
        scores = None
        if made.logprobs is not None:
            of_all = [*(prompt.scores or []), *made.logprobs]
            scores = texts.completion(of_all, [*echoed, *made.token_ids], 0)
        reason = finish_reason(made.finish_reason)
        text = prompt.text + made.text
        choices.append(_choice(first + len(choices), text, scores, reason))
    return choices


def _choice(index: int, text: str, logprobs: object, reason: str | None) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _usage(prompts: Sequence[_Prompt]) -> dict[str, object]:
    told = usage([prompt.stream for prompt in prompts if prompt.stream is not None])
    scored = sum(len(prompt.tokens) for prompt in prompts if prompt.stream is None)
    for name in ("prompt_tokens", "total_tokens"):
        count = told[name]
        assert isinstance(count, int)
        told[name] = count + scored
    return told


class _Events:
    """Encodes what is echoed of prompts, and the pieces of their answers, as events."""

    def __init__(
        self, body: CompletionBody, name: str, prompts: Sequence[_Prompt], texts: TokenTexts
    ) -> None:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        more: dict[str, object] = {"usage": None} if with_usage else {}
        envelope = Envelope("cmpl", "text_completion", name)
        self._chunks = Chunks(envelope, lambda at, text: _choice(at, text, None, None), **more)
        self._body = body
        self._texts = texts
        self._prompts = prompts
        self._with_usage = with_usage
        self._offsets = [len(prompt.text) for prompt in prompts for _ in range(body.n)]

    def echoed(self) -> bytes:
        """Return the events of the prompts, empty where they are not echoed."""
        events: list[bytes] = []
        for prompt in self._prompts if self._body.echo else ():
            scores = None
            if prompt.scores is not None:
                scores = self._texts.completion(prompt.scores, prompt.tokens, 0)
            reason = None if prompt.stream else "length"
            for _ in range(self._body.n):
                choice = _choice(len(events), prompt.text, scores, reason)
                events.append(self._chunks.of([choice]))
        return b"".join(events)

    def of(self, number: int, pieces: Sequence[Piece]) -> bytes:
        """Return the events of pieces of the answers to a prompt, empty if they have no text."""
        return b"".join([self._of(number * self._body.n + each.index, each) for each in pieces])

    def _of(self, index: int, piece: Piece) -> bytes:
        scores = None
        if self._body.logprobs is not None:
            offset = self._offsets[index]
            scores = self._texts.completion(piece.scores, piece.tokens, offset)
        self._offsets[index] += len(piece.text)
        reason = finish_reason(piece.finish_reason)
        if scores or reason:
            return self._chunks.of([_choice(index, piece.text, scores, reason)])
        return self._chunks.text(index, piece.text) if piece.text else b""

    def usage(self) -> bytes:
        """Return the event that tells how many tokens there were, empty unless asked for."""
        return self._chunks.of([], usage=_usage(self._prompts)) if self._with_usage else b""


async def _events(
    made: _Events, prompts: Sequence[_Prompt], metrics: Metrics, quick: QuickEvents
) -> AsyncGenerator[bytes]:
    """Yield the chunks of all prompts as they come, but for those that `quick` writes.

    What is echoed comes first.
    """
    if echoed := made.echoed():
        yield echoed
    async for number, pieces in _merged(prompts, metrics, quick):
        if events := made.of(number, pieces):
            yield events
    if told := made.usage():
        yield told


async def _merged(
    prompts: Sequence[_Prompt], metrics: Metrics, quick: QuickEvents
) -> AsyncGenerator[tuple[int, list[Piece]]]:
    """Yield the pieces of all prompts as they come, with the number of the prompt.

    Those of a prompt alone may be left to `quick`.
    """
    first = prompts[0].stream
    if len(prompts) == 1 and first is not None:
        async for pieces in metrics.measured(first, quick):
            yield 0, pieces
        return
    arrived: asyncio.Queue[tuple[int, list[Piece]] | None] = asyncio.Queue()

    async def read(number: int, stream: AnswerStream) -> None:
        try:
            async for pieces in metrics.measured(stream):
                arrived.put_nowait((number, pieces))
        finally:
            arrived.put_nowait(None)

    tasks = [
        asyncio.create_task(read(number, prompt.stream))
        for number, prompt in enumerate(prompts)
        if prompt.stream is not None
    ]
    try:
        ended = 0
        while ended < len(tasks):
            found = await arrived.get()
            if found is None:
                ended += 1
            else:
                yield found
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
