"""`/v1/completions`: continuations of prompts, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from gptrs_runtime.generation.generate import GenerationOptions
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.accounts import Echoes
from gptrs_serve.bodies import CompletionBody
from gptrs_serve.events import (
    CLOSED_BY_CLIENT,
    Chunks,
    EventStream,
    QuickEvents,
    beside_streams,
    for_client,
    while_connected,
    whole_answer,
)
from gptrs_serve.forms import AskedForm, asked_form, form_of
from gptrs_serve.gaps import gap_tokens
from gptrs_serve.interventions import told_interventions
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import RequestError
from gptrs_serve.requests import (
    Envelope,
    client_of,
    finish_reason,
    options_of,
    prompts_of,
    require_fitting,
    require_written,
    shown_texts,
    told_ids,
    usage,
)
from gptrs_serve.served import WRITING, Served, longest_prompt
from gptrs_serve.token_texts import Scored, TokenTexts
from gptrs_serve.watched_runs import Watched


class AskedPrompt(Struct, frozen=True):
    """A prompt, its answers if any are requested, and its echo."""

    tokens: list[int]
    stream: AnswerStream | None
    text: str
    scored: Scored | None
    watched: Watched | None = None
    read: Scored | None = None
    """The scores for `prompt_logprobs`."""


async def completions(
    request: Request, body: CompletionBody, served: Served, metrics: Metrics
) -> Response:
    """Continue each prompt; raises RequestError and the errors of the engine."""
    require_fitting(body)
    name, model = served.named(body.model, served.capability(body.model, WRITING))
    prompts: list[AskedPrompt] = []

    def cancel() -> None:
        for prompt in prompts:
            if prompt.stream is not None:
                prompt.stream.cancel()

    async def ask() -> bool:
        # Once for all prompts: a form takes up to seconds to compile.
        options = await asked_options(body, model, served)
        client, echoes, all_given = client_of(request), Echoes(body.n), prompts_of(body)
        for given in all_given:
            asked = asked_prompt(body, options, name, model, given, served, client, echoes,
                                 len(all_given))  # fmt: skip
            prompts.append(await asked)
            # Nothing above need have waited: a thousand short prompts would take seconds in which
            # nobody else is answered.
            await asyncio.sleep(0)
        return True

    try:
        # A client with many prompts may go away while they are scored or tokenized.
        await for_client(request, ask())
    except BaseException:
        cancel()
        raise
    texts = shown_texts(body, model, served.texts_of(model))
    if body.stream:
        made = _Events(body, name, prompts, texts)
        quick = QuickEvents(lambda pieces: made.of(0, pieces))
        return EventStream(_events(made, prompts, served, metrics, quick), cancel, quick)
    return await _whole(request, body, name, prompts, served, metrics, texts)


async def asked_options(
    body: CompletionBody, model: LoadedModel, served: Served
) -> GenerationOptions:
    """Return the options for the answers to all prompts."""

    def read() -> tuple[GenerationOptions, AskedForm | None]:
        return options_of(body, model, body.logprobs), asked_form(body)

    options, form = await served.reading.prepared(read)
    return replace(options, form=await form_of(form, body, model, served))


async def asked_prompt(
    body: CompletionBody,
    options: GenerationOptions,
    name: str,
    model: LoadedModel,
    given: str | list[int],
    served: Served,
    client: Client,
    echoes: Echoes | None = None,
    prompts: int = 1,
) -> AskedPrompt:
    """Submit one of so many prompts, after scoring its own tokens if requested.

    RequestError for more than `echoes` may have.
    """
    given = await _last_tokens(body, model, given, served)
    tokens = list(await _tokens(body, model, given, served))
    text, scored, read = "", None, None
    if body.echo:
        text = given if isinstance(given, str) else _decoded(model, tokens)
        if echoes is not None:
            echoes.add(text, len(tokens), body.logprobs)
        if body.logprobs is not None:
            scored = await _scored(body, body.logprobs, name, model, given, tokens, served, client)
    count = body.prompt_logprobs
    if count is not None:
        if echoes is not None:
            echoes.add("", len(tokens), count)
        scores = await served.prompt_scores(name, model, tokens, count, body.priority, client)
        read = Scored(scores, tokens, ())
    if body.max_tokens == 0:
        return AskedPrompt(tokens, None, text, scored, read=read)
    watched = await served.watched(model, body.interventions, len(tokens))
    stream = served.submit(
        name,
        model,
        tokens,
        options,
        max_tokens=body.max_tokens,
        answers=body.n,
        priority=body.priority,
        client=client,
        max_time=body.max_time,
        watched=watched,
        prompts=prompts,
    )
    return AskedPrompt(tokens, stream, text, scored, watched, read)


async def _last_tokens(
    body: CompletionBody, model: LoadedModel, given: str | list[int], served: Served
) -> str | list[int]:
    """Return a prompt, or the tokens at its end if the request asks for fewer than it has."""
    most = body.truncate_prompt_tokens
    if most is None:
        return given
    if body.suffix:
        raise RequestError(
            "`truncate_prompt_tokens` does not go with `suffix`", param="truncate_prompt_tokens"
        )
    if most == -1:
        most = max(1, longest_prompt(model) - body.max_tokens)
    tokens = given if isinstance(given, list) else await served.all_tokens(model, given)
    return list(tokens[-most:]) if len(tokens) > most else given


async def _scored(
    body: CompletionBody,
    count: int,
    name: str,
    model: LoadedModel,
    given: str | list[int],
    tokens: list[int],
    served: Served,
    client: Client,
) -> Scored:
    """Return the scores of the tokens of a prompt."""
    scores = await served.prompt_scores(name, model, tokens, count, body.priority, client)
    texts = served.texts_of(model)
    text = given if isinstance(given, str) else None
    places = await beside_streams(lambda: texts.places(text, tokens), len(tokens))
    return Scored(scores, tokens, places)


async def _tokens(
    body: CompletionBody, model: LoadedModel, given: str | list[int], served: Served
) -> Sequence[int]:
    """Return the tokens of a prompt, including those of a `suffix`."""
    if not body.suffix:
        return await served.tokens(model, given)
    if not isinstance(given, str) or body.echo:
        raise RequestError("`suffix` needs a text prompt, and excludes `echo`", param="suffix")
    return await gap_tokens(served, model, given, body.suffix)


def _decoded(model: LoadedModel, tokens: Sequence[int]) -> str:
    return model.tokenizer.decode(tokens, special=True) if model.has_tokenizer else ""


async def _whole(
    request: Request,
    body: CompletionBody,
    name: str,
    prompts: Sequence[AskedPrompt],
    served: Served,
    metrics: Metrics,
    texts: TokenTexts,
) -> Response:
    streams = [prompt.stream for prompt in prompts if prompt.stream is not None]

    async def read(stream: AnswerStream) -> None:
        async for pieces in metrics.measured(stream):
            require_written(pieces)

    async def read_all() -> None:
        # Together: the engine runs the prompts of one request in the same steps.
        await asyncio.gather(*(read(stream) for stream in streams))

    def cancel_all() -> None:
        for stream in streams:
            stream.cancel()

    try:
        await while_connected(request, read_all(), cancel_all)
    except BaseException:  # one prompt is enough to refuse all
        cancel_all()
        raise
    if any(not text.ended for stream in streams for text in stream.texts):
        return Response(status_code=CLOSED_BY_CLIENT)
    told = await _told(prompts, served)

    def choices() -> Iterator[dict[str, object]]:
        for number, prompt in enumerate(prompts):
            yield from _choices(body, prompt, texts, number * body.n)

    envelope = Envelope("cmpl", "text_completion", name)
    new = sum(len(text.tokens) for stream in streams for text in stream.texts)
    size = _entries(body, prompts, new)
    return await whole_answer(envelope, choices(), told, lambda: _usage(prompts), size)


def _entries(body: CompletionBody, prompts: Sequence[AskedPrompt], new: int) -> int:
    """Return about how many entries an answer with so many new tokens has."""
    read = body.n * sum(len(each.tokens) for each in prompts)
    comes_back = body.echo or body.return_token_ids
    size = (1 + (body.logprobs or 0)) * (new + (read if comes_back else 0)) + body.n * len(prompts)
    return size if body.prompt_logprobs is None else size + (1 + body.prompt_logprobs) * read


async def _told(prompts: Sequence[AskedPrompt], served: Served) -> list[dict[str, object]]:
    """Return what was read of each answer, nothing without interventions."""
    found: list[dict[str, object]] = []
    for prompt in prompts:
        if prompt.stream is not None:
            found += await told_interventions(prompt.watched, prompt.stream, served)
    return found


def _choices(
    body: CompletionBody, prompt: AskedPrompt, texts: TokenTexts, first: int
) -> Iterator[dict[str, object]]:
    """Yield the choices of one prompt."""
    ids = told_ids(body, "prompt_token_ids", prompt.tokens)
    if prompt.read is not None:
        ids["prompt_logprobs"] = texts.by_ids(prompt.read)
    if prompt.stream is None:
        ids |= told_ids(body, "token_ids", ())
        for index in range(first, first + body.n):
            yield _choice(index, prompt.text, texts.completion(prompt.scored), "length") | ids
        return
    for index, made in enumerate(prompt.stream.generations, first):
        answer = texts.new_answer(prompt.text)
        text, scored = answer.add(made.text, made.token_ids, made.logprobs or (), ends=True)
        if prompt.scored is not None:
            scored = prompt.scored.before(scored)
        told = texts.completion(scored)
        ids |= told_ids(body, "token_ids", made.token_ids)
        yield _choice(index, prompt.text + text, told, finish_reason(made.finish_reason)) | ids


def _choice(index: int, text: str, logprobs: object, reason: str | None) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _usage(prompts: Sequence[AskedPrompt]) -> dict[str, object]:
    told = usage([prompt.stream for prompt in prompts if prompt.stream is not None])
    scored = sum(len(prompt.tokens) for prompt in prompts if prompt.stream is None)
    for name in ("prompt_tokens", "total_tokens"):
        count = told[name]
        assert isinstance(count, int)
        told[name] = count + scored
    return told


class _Events:
    """Encodes the echo of prompts, and the pieces of their answers, as events."""

    def __init__(
        self, body: CompletionBody, name: str, prompts: Sequence[AskedPrompt], texts: TokenTexts
    ) -> None:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        more: dict[str, object] = {"usage": None} if with_usage else {}
        envelope = Envelope("cmpl", "text_completion", name)
        self._chunks = Chunks(envelope, lambda at, text: _choice(at, text, None, None), **more)
        self._body = body
        self._prompts = prompts
        self._texts = texts
        self._with_usage = with_usage
        self._answers = [texts.new_answer(each.text) for each in prompts for _ in range(body.n)]

    async def echoed(self) -> AsyncGenerator[bytes]:
        """Yield the events of prompts that come back, as text or as tokens."""
        n, body = self._body.n, self._body
        comes_back = body.echo or body.return_token_ids
        for number, prompt in enumerate(self._prompts if comes_back else ()):
            reason = None if prompt.stream else "length"
            size = len(prompt.tokens) * (1 + (body.logprobs or 0))
            ids = told_ids(body, "prompt_token_ids", prompt.tokens)
            for index in range(number * n, (number + 1) * n):
                told = self._texts.completion(prompt.scored)
                choice = _choice(index, prompt.text, told, reason) | ids
                yield await beside_streams(partial(self._chunks.of, [choice]), size)

    def of(self, number: int, pieces: Sequence[Piece]) -> bytes:
        """Return the events for pieces of a prompt's answers; empty if they have no text."""
        return b"".join([self._of(number * self._body.n + each.index, each) for each in pieces])

    def _of(self, index: int, piece: Piece) -> bytes:
        ends = piece.finish_reason is not None
        text, scored = self._answers[index].add(piece.text, piece.tokens, piece.scores, ends=ends)
        scores = self._texts.completion(scored)
        reason = finish_reason(piece.finish_reason)
        ids = told_ids(self._body, "token_ids", piece.tokens)
        if scores or reason or ids:
            return self._chunks.of([_choice(index, text, scores, reason) | ids])
        return self._chunks.text(index, text) if text else b""

    def interventions(self, told: Sequence[dict[str, object]]) -> bytes:
        """Return the events with what was read of each answer."""
        choices = [{**_choice(n, "", None, None), "interventions": t} for n, t in enumerate(told)]
        return b"".join([self._chunks.of([choice]) for choice in choices])

    def usage(self) -> bytes:
        """Return the event with token counts, empty unless requested."""
        return self._chunks.of([], usage=_usage(self._prompts)) if self._with_usage else b""


async def _events(
    made: _Events,
    prompts: Sequence[AskedPrompt],
    served: Served,
    metrics: Metrics,
    quick: QuickEvents,
) -> AsyncGenerator[bytes]:
    """Yield the chunks of all prompts as they come, except those that `quick` writes.

    The echo comes first.
    """
    async for echoed in made.echoed():  # not joined: a prompt comes back up to 128 times
        yield echoed
    async for number, pieces in _merged(prompts, metrics, quick):
        if events := made.of(number, pieces):
            yield events
        require_written(pieces)
    if found := await _told(prompts, served):
        yield made.interventions(found)
    if told := made.usage():
        yield told


async def _merged(
    prompts: Sequence[AskedPrompt], metrics: Metrics, quick: QuickEvents
) -> AsyncGenerator[tuple[int, list[Piece]]]:
    """Yield the pieces of all prompts as they come, with the number of the prompt.

    With a single prompt, `quick` may handle them.
    """
    first = prompts[0].stream
    # The usual case: its pieces can be written from the engine's callback. Several prompts need a
    # queue to merge them.
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
            # Also after an error: the reader counts ends, and would wait forever for one that does
            # not come.
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
