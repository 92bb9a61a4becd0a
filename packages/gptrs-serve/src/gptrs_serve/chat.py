"""`/v1/chat/completions`: an answer to a conversation, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from gptrs_runtime.chat.answer_reader import AnswerForm, AnswerReader
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.generation.chat_session import answer_form, opens_thoughts, thought_tokens
from gptrs_runtime.generation.generate import Generation, GenerationOptions
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_runtime.images.image_prompts import shown_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.bodies import ChatBody
from gptrs_serve.events import (
    CLOSED_BY_CLIENT,
    Chunks,
    EventStream,
    QuickEvents,
    for_client,
    while_connected,
    whole_answer,
)
from gptrs_serve.forms import AskedForm, asked_form, form_of
from gptrs_serve.interventions import told_interventions
from gptrs_serve.metrics import Metrics
from gptrs_serve.requests import (
    Envelope,
    asked_conversation,
    chat_logprobs,
    chat_max_tokens,
    client_of,
    finish_reason,
    options_of,
    require_written,
    shown_texts,
    told_ids,
    usage,
)
from gptrs_serve.served import Served
from gptrs_serve.token_texts import TokenTexts
from gptrs_serve.tools.parser import AnswerDeltas
from gptrs_serve.tools.use import ToolUse, told_tools, tool_use
from gptrs_serve.watched_runs import Watched


class Chat(Struct, frozen=True):
    """A conversation that the engine answers, from which every protocol makes its answer.

    The answers of `stream` are read by `form`, and begin within thoughts where the prompt has
    `opened` them.
    """

    name: str
    model: LoadedModel
    stream: AnswerStream
    form: AnswerForm
    opened: bool
    texts: TokenTexts
    metrics: Metrics
    shows_thoughts: bool = True
    watched: Watched | None = None

    def new_answer(self) -> AnswerDeltas:
        """Return a reader of one of the answers."""
        return AnswerDeltas(self.form, opened=self.opened, thoughts=self.shows_thoughts)

    def new_reader(self) -> AnswerReader:
        """Return a reader of one of the answers, for other protocols than OpenAI's."""
        return AnswerReader(self.form, opened=self.opened)

    def prompt_ids(self, body: ChatBody) -> dict[str, object]:
        """Return the field with the tokens of the prompt, if requested."""
        return told_ids(body, "prompt_token_ids", shown_tokens(self.stream.texts[0].prompt))

    def thought_tokens(self, readers: Sequence[AnswerReader]) -> int | None:
        """Return how many tokens of the answers are thoughts; None for a model without thoughts."""
        if self.form.thoughts is None:
            return None
        texts = zip(readers, self.stream.texts, strict=True)
        return sum(thought_tokens(self.model, each, text.tokens) for each, text in texts)

    def usage(self, answers: Sequence[AnswerDeltas]) -> dict[str, object]:
        """Return the token counts of the conversation and its answers."""
        return usage([self.stream], self.thought_tokens([each.reader for each in answers]))

    async def is_whole(self, request: Request) -> bool:
        """Read all answers; False if the client disconnects first. Raises NoTokenError."""

        async def read() -> None:
            async for pieces in self.metrics.measured(self.stream):
                require_written(pieces)

        await while_connected(request, read(), self.stream.cancel)
        return all(text.ended for text in self.stream.texts)


async def chat(request: Request, body: ChatBody, served: Served, metrics: Metrics) -> Response:
    """Answer a conversation; errors are those of the engine, and RequestError."""
    asked = asked_chat(lambda: body, served, metrics, client_of(request))
    begun = await for_client(request, asked)
    if body.stream:
        made = _Events(body, begun)
        quick = QuickEvents(made.of)
        return EventStream(_events(made, begun, served, quick), begun.stream.cancel, quick)
    return await _whole(request, body, begun, served)


class _Read(Struct, frozen=True):
    """A body, and what follows from it alone."""

    body: ChatBody
    name: str
    model: LoadedModel
    tools: ToolUse | None
    form: AskedForm | None
    options: GenerationOptions
    conversation: Conversation


def _read(asked: Callable[[], ChatBody], served: Served) -> _Read:
    body = asked()
    name, model = served.named(body.model, "causal_lm")
    tools = tool_use(body, model)
    if tools:  # schemas that are too long are refused before a template writes them
        tools.grammar(opened=False)
    special = (tools.form if tools else answer_form(model)).shown
    options = options_of(body, model, chat_logprobs(body), special=special)
    conversation = asked_conversation(body, told_tools(body))
    return _Read(body, name, model, tools, asked_form(body), options, conversation)


async def asked_chat(
    asked: Callable[[], ChatBody], served: Served, metrics: Metrics, client: Client
) -> Chat:
    """Submit the conversation of the body that `asked` returns."""
    read = await served.reading.prepared(lambda: _read(asked, served))
    body, name, model, tools = read.body, read.name, read.model, read.tools
    answers = tools.form if tools else answer_form(model)
    most = chat_max_tokens(body)
    tokens = await served.tokens(model, read.conversation)
    opened = opens_thoughts(model, answers, tokens)
    # An answer kept to a form that cannot contain the end of thoughts would stay within them to its
    # last token.
    opened = opened and (tools is not None or _has_thoughts(read.form, answers))
    calls = tools.grammar(opened=opened) if tools else None
    form = await form_of(read.form if calls is None else ("lark", calls), body, model, served)
    options = replace(read.options, form=form)
    watched = await served.watched(model, body.interventions, len(tokens))
    await served.see(model, tokens)
    # From here on the engine holds a slot: nothing before this line needs to be undone when the
    # client goes away.
    stream = served.submit(
        name,
        model,
        tokens,
        options,
        max_tokens=most,
        answers=body.n,
        priority=body.priority,
        client=client,
        max_time=body.max_time,
        watched=watched,
    )
    return Chat(
        name=name,
        model=model,
        stream=stream,
        form=answers,
        opened=opened,
        texts=shown_texts(body, model, served.texts_of(model)),
        metrics=metrics,
        shows_thoughts=body.include_reasoning is not False,
        watched=watched,
    )


async def count_tokens(asked: Callable[[], ChatBody], served: Served) -> int:
    """Return how many tokens the prompt of a conversation has."""

    def read() -> tuple[LoadedModel, Conversation]:
        body = asked()
        model = served.named(body.model, "causal_lm")[1]
        return model, asked_conversation(body, told_tools(body))

    return len(await served.tokens(*await served.reading.prepared(read)))


def _has_thoughts(form: AskedForm | None, answers: AnswerForm) -> bool:
    """Return whether the form of an answer allows it to end thoughts."""
    if form is None:
        return True
    end = "" if answers.thoughts is None else answers.thoughts.end
    return form[0] != "json_schema" and end in form[1].replace("\\", "")


async def _whole(request: Request, body: ChatBody, begun: Chat, served: Served) -> Response:
    if not await begun.is_whole(request):
        return Response(status_code=CLOSED_BY_CLIENT)
    stream = begun.stream
    answers = [begun.new_answer() for _ in stream.texts]
    choices = (
        _choice(index, made, answer, begun) | told_ids(body, "token_ids", made.token_ids)
        for index, (made, answer) in enumerate(zip(stream.generations, answers, strict=True))
    )
    told = await told_interventions(begun.watched, stream, served)
    envelope = Envelope("chatcmpl", "chat.completion", begun.name)
    size = sum(len(text.tokens) for text in stream.texts) * (1 + (body.top_logprobs or 0))
    size += stream.prompt_tokens if body.return_token_ids else 0
    return await whole_answer(
        envelope, choices, told, lambda: begun.usage(answers), size, **begun.prompt_ids(body)
    )


def _choice(index: int, made: Generation, answer: AnswerDeltas, begun: Chat) -> dict[str, object]:
    message = answer.message(made.text)
    scores = None if made.logprobs is None else begun.texts.chat(made.logprobs)
    return {
        "index": index,
        "message": message,
        "logprobs": scores,
        "finish_reason": finish_reason(made.finish_reason, calls="tool_calls" in message),
    }


class _Events:
    """Encodes the pieces of all answers as events."""

    def __init__(self, body: ChatBody, begun: Chat) -> None:
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        more: dict[str, object] = {"usage": None} if self._with_usage else {}
        envelope = Envelope("chatcmpl", "chat.completion.chunk", begun.name)
        self._chunks = Chunks(
            envelope, lambda index, text: _delta(index, {"content": text}), **more
        )
        self._answers = [begun.new_answer() for _ in begun.stream.texts]
        self._begun = begun
        self._body = body

    def roles(self) -> bytes:
        """Return the first events."""
        role: dict[str, object] = {"role": "assistant", "content": ""}
        first, *others = ([_delta(index, role)] for index in range(len(self._answers)))
        begin = self._chunks.of(first, **self._begun.prompt_ids(self._body))
        return begin + b"".join([self._chunks.of(each) for each in others])

    def of(self, pieces: Sequence[Piece]) -> bytes:
        """Return the events of pieces, empty if they have no text."""
        return b"".join([event for piece in pieces for event in self._of(piece)])

    def usage(self) -> bytes:
        """Return the event with token counts, empty unless requested."""
        told = self._begun.usage(self._answers) if self._with_usage else None
        return b"" if told is None else self._chunks.of([], usage=told)

    def interventions(self, told: Sequence[dict[str, object]]) -> bytes:
        """Return the events with what was read of each answer."""
        deltas = [{**_delta(index, {}), "interventions": each} for index, each in enumerate(told)]
        return b"".join([self._chunks.of([delta]) for delta in deltas])

    def _of(self, piece: Piece) -> Iterator[bytes]:
        """Yield the chunks of a piece."""
        chunks = self._chunks
        # The common case, a model without thoughts or tools, needs no reader, and encodes its text
        # between two kept parts of JSON.
        body = self._body
        is_text = self._begun.form.is_plain and not (body.logprobs or body.return_token_ids)
        if is_text and piece.finish_reason is None:
            if piece.text:
                yield chunks.text(piece.index, piece.text)
            return
        answer = self._answers[piece.index]
        scores = None
        if body.logprobs:
            scores = self._begun.texts.chat(piece.scores)
        ids = told_ids(body, "token_ids", piece.tokens)
        # Tokens whose text is still withheld (half a character, or the beginning of a stop string)
        # are sent with an empty text; dropped, they would be missing from the sum.
        empty: list[dict[str, object]] = [{"content": ""}] if scores or ids else []
        for delta in answer.of(piece) or empty:
            yield chunks.of([_delta(piece.index, delta, scores=scores) | ids])
            scores, ids = None, {}
        if piece.finish_reason is not None:
            reason = finish_reason(piece.finish_reason, calls=answer.has_calls)
            yield chunks.of([_delta(piece.index, {}, reason)])


async def _events(
    made: _Events, begun: Chat, served: Served, quick: QuickEvents
) -> AsyncGenerator[bytes]:
    """Yield the chunks of all answers, except those that `quick` writes."""
    yield made.roles()
    async for pieces in begun.metrics.measured(begun.stream, quick):
        if events := made.of(pieces):
            yield events
        require_written(pieces)
    if found := await told_interventions(begun.watched, begun.stream, served):
        yield made.interventions(found)
    if told := made.usage():
        yield told


def _delta(
    index: int, delta: dict[str, object], reason: str | None = None, scores: object = None
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}
