"""OpenAI's Responses API: `/v1/responses`, whole or as events; stored ones can be continued."""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from gptrs_runtime.chat.answer_reader import AnswerEvent, CallArguments, TextDelta, ThoughtsDelta
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_serve.chat import Chat, asked_chat, count_tokens
from gptrs_serve.dialects.responses_body import InputTokensBody, ResponsesBody, ResponsesFields
from gptrs_serve.dialects.turns import Turns
from gptrs_serve.events import event_of, for_client
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import RequestError, body_bytes, fields_called, problem_of
from gptrs_serve.requests import client_of
from gptrs_serve.served import Served, longest_prompt
from gptrs_serve.tools.parser import new_call_id
from gptrs_serve.writing import AnswerWriter

MOST_KEPT_BYTES: Final = 64_000_000
"""Most bytes of all stored responses with their messages; the oldest are dropped first."""
_NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of chats, and what responses call them."""
Messages = Sequence[Mapping[str, Any]]
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctc",
}
"""The beginnings of the ids of items."""
_ORDERS: Final = ("desc", "asc")
_MOST_ITEMS: Final = 100
"""Most items of a list."""


class _Kept(Struct, frozen=True):
    """A response, its owner, the messages up to its end, and the items that it answers."""

    client: Client
    response: Mapping[str, Any]
    messages: Messages
    items: Messages
    size: int


class Responses:
    """Answers requests for responses, and keeps those that may be continued, in memory only.

    Only its own client can read each: the one with the same key, or else address.
    """

    def __init__(self, served: Served, metrics: Metrics) -> None:
        self._served = served
        self._metrics = metrics
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    async def create(self, request: Request, body: ResponsesBody) -> Response:
        """Answer a request; raises RequestError and the errors of the engine."""
        client = client_of(request)
        (before, items), messages = self._before(body, client), list[Mapping[str, Any]]()

        async def asked() -> Chat:
            messages.extend([*before, *await self._served.reading.prepared(body.said)])
            read = await self._fitting(body, messages, body.max_output_tokens)
            return await asked_chat(lambda: body.asked(read), self._served, self._metrics, client)

        with fields_called(_NAMES):
            chat = await for_client(request, asked())
        writer = ResponseWriter(chat, body, self._served.response_mark)
        if body.store is not False:
            items = [*items, *_items(body.input)]
            writer.keep = lambda: self._keep(
                client, writer.whole(), [*messages, *writer.said()], items
            )
        return await writer.answer(request, stream=body.stream)

    async def count(self, request: Request, body: InputTokensBody) -> Response:
        """Return the number of tokens of an input."""
        before, _ = self._before(body, client_of(request))

        async def counted() -> int:
            said = await self._served.reading.prepared(body.said)
            read = await self._fitting(body, [*before, *said], None)
            return await count_tokens(lambda: body.chat(read), self._served)

        with fields_called(_NAMES):
            count = await for_client(request, counted())
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})

    async def _fitting(
        self, body: ResponsesFields, messages: Messages, most: int | None
    ) -> Messages:
        """Return messages, with `truncation` without the oldest turns if all do not fit.

        There is room for `most` new tokens beside them, but no more than half of the context.
        """
        if body.truncation != "auto":
            return messages
        limit = longest_prompt(self._served.named(body.model, "causal_lm")[1])
        room = limit - min(most or 1, limit // 2)

        async def fits(begin: Messages) -> bool:
            try:
                return await count_tokens(lambda: body.chat(begin), self._served) <= room
            except RequestError as error:
                if error.code != "context_length_exceeded":
                    raise
                return False

        choices = _shorter(messages)
        if len(choices) == 1 or await fits(messages):
            return messages
        # Bisection: each try renders and tokenizes a conversation.
        low, high = 1, len(choices) - 1
        while low < high:
            middle = (low + high) // 2
            if await fits(choices[middle]):
                high = middle
            else:
                low = middle + 1
        return choices[low]

    async def retrieve(self, request: Request) -> Response:
        """Return a stored response; RequestError for one asked for as a stream."""
        if request.query_params.get("stream") == "true":
            raise RequestError("stored responses are returned whole", param="stream")
        return JSONResponse(self._found(request).response)

    async def cancel(self, request: Request) -> Response:
        """Raise RequestError: no response is computed in the background."""
        self._found(request)
        raise RequestError(
            "only responses in the background can be cancelled, and this server has none: a client"
            " that disconnects cancels its own",
            param="response_id",
        )

    async def input_items(self, request: Request) -> Response:
        """Return the items that a stored response answers, those of earlier responses included."""
        items = [*self._found(request).items]
        order = _one_of(request, "order", _ORDERS)
        limit = int(_one_of(request, "limit", tuple(map(str, range(1, _MOST_ITEMS + 1))), "20"))
        if order == "desc":
            items.reverse()
        after = request.query_params.get("after")
        if after is not None:
            names = [str(item["id"]) for item in items]
            if after not in names:
                raise RequestError(f"there is no item {after[:80]!r}", param="after")
            items = items[names.index(after) + 1 :]
        found = items[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": found,
                "first_id": found[0]["id"] if found else None,
                "last_id": found[-1]["id"] if found else None,
                "has_more": len(items) > limit,
            }
        )

    async def delete(self, request: Request) -> Response:
        """Forget a response."""
        kept = self._found(request)
        name = str(kept.response["id"])
        self._bytes -= self._kept.pop(name).size
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    def _found(self, request: Request) -> _Kept:
        name = str(request.path_params["name"])
        kept = self._kept.get(name)
        # The same answer for both: another one would tell whose ids exist.
        if kept is None or kept.client != client_of(request):
            raise _unknown(name, 404, "response_id")
        return kept

    def _before(self, body: ResponsesFields, client: Client) -> tuple[Messages, Messages]:
        """Return the messages and the items that a body continues."""
        name = body.previous_response_id
        if name is None:
            return (), ()
        kept = self._kept.get(name)
        if kept is None or kept.client != client:
            raise _unknown(name, 400, "previous_response_id")
        # A conversation that goes on stays; the one untouched for longest goes first.
        self._kept.move_to_end(name)
        body_bytes.set(body_bytes.get() + kept.size)
        return kept.messages, [*kept.items, *kept.response["output"]]

    def _keep(
        self, client: Client, response: Mapping[str, Any], messages: Messages, items: Messages
    ) -> None:
        # By bytes, not by count: one response may hold images of megabytes, whose texts its
        # messages and items share.
        size = len(json.dumps([response, messages]))
        self._kept[str(response["id"])] = _Kept(client, response, messages, items, size)
        self._bytes += size
        while self._bytes > MOST_KEPT_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1].size


def _shorter(messages: Messages) -> list[Messages]:
    """Return messages without none, one, two... of their oldest turns; the last one always stays.

    A turn begins with a message of the user. First system messages stay.
    """
    roles = [each["role"] for each in messages]
    head = next((n for n, role in enumerate(roles) if role != "system"), len(roles))
    starts = [n for n, role in enumerate(roles) if role == "user" and n > head]
    return [messages, *([*messages[:head], *messages[start:]] for start in starts)]


def _items(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of an input as they are listed: each with an id, and content in parts."""
    found: list[dict[str, Any]] = []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type") or "message"
        told = {key: value for key, value in item.items() if value is not None}
        if isinstance(told.get("content"), str):
            part = "output_text" if told["role"] == "assistant" else "input_text"
            told["content"] = [{"type": part, "text": told["content"]}]
        made = {"type": kind, "id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", "status": "completed"}
        found.append(made | told)
    return found


def _one_of(request: Request, name: str, values: Sequence[str], default: str = "") -> str:
    """Return a value of the query, by default the first or `default`; RequestError for others."""
    given = request.query_params.get(name, default or values[0])
    if given not in values:
        raise RequestError(f"`{name}` is one of {values[0]} to {values[-1]}", param=name)
    return given


def _unknown(name: str, status: int, param: str) -> RequestError:
    return RequestError(
        f"there is no response {name[:80]!r}: those with `store: false` are not kept, and others"
        " as long as there is room for them and the server runs",
        status=status,
        param=param,
        code="previous_response_not_found",
    )


class ResponseWriter(AnswerWriter):
    """Writes the items of a response (thoughts, messages, calls) in the order of the events.

    What a stream says of an item is its beginning, that of its part, the pieces, and the ends of
    both; `response.completed` has the whole response.
    """

    def __init__(self, chat: Chat, body: ResponsesBody, mark: str = "") -> None:
        super().__init__(chat)
        self._body = body
        self._id = f"resp_{mark}{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._is_open = False
        self._customs = body.custom_tools()
        self._arguments = ""
        """Those of a call of a tool whose input is text."""
        self._status = "in_progress"
        self._error: dict[str, str] | None = None

    @override
    def begin(self) -> bytes:
        return b"".join(
            self._event(f"response.{name}", response=self.whole())
            for name in ("created", "in_progress")
        )

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        if isinstance(event, ThoughtsDelta):
            yield from self._in("reasoning", "rs", {"summary": [], "encrypted_content": None})
            yield from self._add("reasoning_text", event.text)
        elif isinstance(event, TextDelta):
            yield from self._in("message", "msg", {"role": "assistant"})
            yield from self._add("output_text", event.text)
        elif isinstance(event, CallArguments):
            yield from self._add_arguments(event.text)
        else:
            yield from self._close("completed")
            called = {"call_id": new_call_id(self.chat.form), "name": event.name}
            if event.name in self._customs:
                yield from self._begin("custom_tool_call", "ctc", {**called, "input": ""})
            else:
                yield from self._begin("function_call", "fc", {**called, "arguments": ""})

    def _in(self, kind: str, prefix: str, fields: dict[str, Any]) -> Iterator[bytes]:
        """Continue an item of a kind, or begin one with its only part."""
        if self._is_open and self._items[-1]["type"] == kind:
            return
        yield from self._close("completed")
        yield from self._begin(kind, prefix, {**fields, "content": []})
        part = _part(kind)
        self._items[-1]["content"].append(part)
        yield self._event("response.content_part.added", **self._place, part=part)

    def _begin(self, kind: str, prefix: str, fields: dict[str, Any]) -> Iterator[bytes]:
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
        self._items.append({**item, **fields})
        self._is_open = True
        yield self._event(
            "response.output_item.added", output_index=self._index, item=self._items[-1]
        )

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        self._items[-1]["content"][0]["text"] += text
        more: dict[str, object] = {"logprobs": []} if kind == "output_text" else {}
        yield self._event(f"response.{kind}.delta", **self._place, delta=text, **more)

    def _add_arguments(self, text: str) -> Iterator[bytes]:
        item = self._items[-1]
        if item["type"] == "custom_tool_call":  # its text is known when its JSON is whole
            self._arguments += text
            return
        item["arguments"] += text
        yield self._event("response.function_call_arguments.delta", **self._of_item, delta=text)

    def _close(self, status: str) -> Iterator[bytes]:
        """End the open item, and its part."""
        if not self._is_open:
            return
        item = self._items[-1]
        item["status"] = status
        kind = item["type"]
        if kind == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._of_item, **done)
        elif kind == "custom_tool_call":
            item["input"], self._arguments = _input(self._arguments), ""
            name = "response.custom_tool_call_input"
            yield self._event(f"{name}.delta", **self._of_item, delta=item["input"])
            yield self._event(f"{name}.done", **self._of_item, input=item["input"])
        else:
            (part,) = item["content"]
            more: dict[str, object] = {"logprobs": []} if kind == "message" else {}
            name = f"response.{part['type']}.done"
            yield self._event(name, **self._place, text=part["text"], **more)
            yield self._event("response.content_part.done", **self._place, part=part)
        self._is_open = False
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        return len(self._items) - 1

    @property
    def _of_item(self) -> dict[str, object]:
        return {"item_id": self._items[-1]["id"], "output_index": self._index}

    @property
    def _place(self) -> dict[str, object]:
        return {**self._of_item, "content_index": 0}

    def _event(self, name: str, /, **fields: object) -> bytes:
        event = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return event_of(event, name)

    @override
    def end(self) -> bytes:
        is_cut = self.reason == "length"
        # An empty answer still has a message, whose text clients read.
        events = b"" if self._items else b"".join(self._in("message", "msg", _ASSISTANT))
        events += b"".join(self._close("incomplete" if is_cut else "completed"))
        self._status = "incomplete" if is_cut else "completed"
        return events + self._event(f"response.{self._status}", response=self.whole())

    @override
    def failed(self, error: Exception) -> bytes:
        problem = problem_of(error)
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        code = "invalid_prompt" if problem.status == 400 else code
        self._status = "failed"
        self._error = {"code": code, "message": problem.message}
        return self._event("response.failed", response=self.whole())

    def said(self) -> list[dict[str, Any]]:
        """Return the messages that the response adds to the conversation."""
        turns = Turns()
        for item in self._items:
            if item["type"] == "reasoning":
                turns.think(item["content"][0]["text"])
            elif item["type"] == "message":
                text = item["content"][0]["text"]
                turns.say("assistant", [{"type": "text", "text": text}] if text else [])
            elif item["type"] == "function_call":
                turns.call(item["call_id"], item["name"], item["arguments"] or "{}")
            else:
                turns.call(item["call_id"], item["name"], json.dumps({"input": item["input"]}))
        return turns.messages()

    @override
    def whole(self) -> dict[str, object]:
        body, is_cut = self._body, self._status == "incomplete"
        has_ended = self._status in ("completed", "incomplete")
        reasoning = body.reasoning
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.chat.name,
            "output": list(self._items),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": _format(body)},
            "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if has_ended else None,
            "user": body.user,
        }

    def _usage(self) -> dict[str, object]:
        stream = self.chat.stream
        read, written = stream.prompt_tokens, len(stream.texts[0].tokens)
        cached = {"cached_tokens": stream.cached_tokens, "cache_write_tokens": 0}
        return {
            "input_tokens": read,
            "input_tokens_details": cached,
            "output_tokens": written,
            "output_tokens_details": {
                "reasoning_tokens": self.chat.thought_tokens([self.reader]) or 0
            },
            "total_tokens": read + written,
        }


_ASSISTANT: Final[dict[str, Any]] = {"role": "assistant"}


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _format(body: ResponsesBody) -> object:
    form = body.text.format if body.text is not None else None
    return {"type": "text"} if form is None else msgspec.to_builtins(form)


def _input(arguments: str) -> str:
    """Return the text that is the input of a tool, or the beginning of a truncated one."""
    try:
        found = cast("dict[str, object]", json.loads(arguments))
    except ValueError:
        return arguments
    return str(found.get("input", ""))
