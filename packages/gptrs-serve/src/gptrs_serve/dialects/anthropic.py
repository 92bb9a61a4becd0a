"""Anthropic's Messages API: `/v1/messages`, whole or as a stream, and the count of tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from gptrs_runtime.chat.answer_reader import AnswerEvent, CallArguments, TextDelta, ThoughtsDelta
from gptrs_serve.chat import Chat, asked_chat, count_tokens
from gptrs_serve.dialects.anthropic_body import CountBody, MessagesBody
from gptrs_serve.events import event_of, for_client
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import ANTHROPIC, problem_of
from gptrs_serve.requests import client_of
from gptrs_serve.served import Served
from gptrs_serve.writing import AnswerWriter


async def messages(
    request: Request, body: MessagesBody, served: Served, metrics: Metrics
) -> Response:
    """Answer a conversation; raises RequestError and the errors of the engine."""
    asked = asked_chat(body.asked, served, metrics, client_of(request))
    writer = MessageWriter(await for_client(request, asked))
    return await writer.answer(request, stream=body.stream)


async def counted(request: Request, body: CountBody, served: Served) -> Response:
    """Return the number of tokens of a conversation."""
    count = await for_client(request, count_tokens(body.chat, served))
    return JSONResponse({"input_tokens": count})


class MessageWriter(AnswerWriter):
    """Writes a message of blocks: thoughts, text, calls; in the order of Anthropic's events."""

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat)
        self._id = f"msg_{uuid.uuid4().hex}"
        self._blocks: list[dict[str, Any]] = []
        self._open = ""
        """The kind of the open block."""
        self._arguments = ""

    @override
    def begin(self) -> bytes:
        usage = self._usage()
        # The first tokens may be there already; `message_delta` tells the total.
        usage["output_tokens"] = 0
        message: dict[str, object] = {**self._message(), "usage": usage}
        message["content"] = []
        return _event("message_start", message=message) + _event("ping")

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        if isinstance(event, ThoughtsDelta):
            yield from self._in("thinking", {"thinking": "", "signature": ""})
            self._blocks[-1]["thinking"] += event.text
            yield self._delta({"type": "thinking_delta", "thinking": event.text})
        elif isinstance(event, TextDelta):
            yield from self._in("text", {"text": ""})
            self._blocks[-1]["text"] += event.text
            yield self._delta({"type": "text_delta", "text": event.text})
        elif isinstance(event, CallArguments):
            self._arguments += event.text
            yield self._delta({"type": "input_json_delta", "partial_json": event.text})
        else:
            yield from self._close()
            called: dict[str, Any] = {"id": f"toolu_{uuid.uuid4().hex[:24]}", "name": event.name}
            # Clients join the `partial_json` pieces; the object here is only a beginning.
            called["input"] = {}
            yield from self._in("tool_use", called)

    def _in(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Continue a block of a kind, or begin one."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._blocks.append({"type": kind, **block})
        yield _event("content_block_start", index=self._index, content_block=self._blocks[-1])

    def _close(self) -> Iterator[bytes]:
        """End the open block."""
        if not self._open:
            return
        if self._open == "tool_use":
            self._blocks[-1]["input"] = arguments_of(self._arguments)
            self._arguments = ""
        if self._open == "thinking":
            # Anthropic's streams end each block of thoughts with its signature; there is none here.
            yield self._delta({"type": "signature_delta", "signature": ""})
        self._open = ""
        yield _event("content_block_stop", index=self._index)

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    @override
    def end(self) -> bytes:
        events = b"".join(self._close())
        ended = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_string}
        events += _event("message_delta", delta=ended, usage=self._usage())
        return events + _event("message_stop")

    @override
    def failed(self, error: Exception) -> bytes:
        return event_of(problem_of(error).body(ANTHROPIC), "error")

    @override
    def whole(self) -> dict[str, object]:
        ended = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_string}
        return {**self._message(), "content": self._blocks, **ended, "usage": self._usage()}

    def _message(self) -> dict[str, object]:
        ended = {"stop_reason": None, "stop_sequence": None}
        kind = {"id": self._id, "type": "message", "role": "assistant"}
        return {**kind, "model": self.chat.name, **ended}

    @property
    def _stop_string(self) -> str | None:
        return self.chat.stream.texts[0].stop_string

    def _stop_reason(self) -> str:
        if self.reason == "length":
            return "max_tokens"
        # After `length`: a call that was cut off must not be run.
        if self.reader.calls:
            return "tool_use"
        return "stop_sequence" if self.reason == "stop" else "end_turn"

    def _usage(self) -> dict[str, object]:
        """Return the tokens so far: those read, those found in the cache, and those written."""
        stream = self.chat.stream
        return {
            # Anthropic counts cached tokens apart, where OpenAI counts them within the prompt.
            "input_tokens": stream.prompt_tokens - stream.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": stream.cached_tokens,
            "output_tokens": len(stream.texts[0].tokens),
        }


def _event(name: str, /, **fields: object) -> bytes:
    return event_of({"type": name, **fields}, name)


def arguments_of(text: str) -> dict[str, object]:
    """Return the arguments of a call, an object; empty if the answer was cut within them."""
    try:
        return cast("dict[str, object]", json.loads(text or "{}"))
    except ValueError:
        return {}
