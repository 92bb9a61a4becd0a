"""Answers as messages or as the deltas of a stream, with thoughts and calls of tools."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from gptrs_runtime.chat.answer_reader import (
    AnswerEvent,
    AnswerForm,
    AnswerReader,
    CallArguments,
    CallStart,
    TextDelta,
    ThoughtsDelta,
)
from gptrs_runtime.chat.messages import (
    THINK,
    CallFamily,
    ThoughtMarks,
)
from gptrs_runtime.generation.chat_session import joined
from gptrs_runtime.serving.answers import Piece

__all__ = ["AnswerDeltas", "CallArguments", "CallParser", "CallStart", "TextDelta", "ThoughtsDelta"]


class CallParser(AnswerReader):
    """Reads an answer with calls of `tools`, by their names alone: none of them needs arguments."""

    def __init__(
        self,
        family: CallFamily,
        tools: Collection[str],
        *,
        several: bool = True,
        thoughts: ThoughtMarks | None = THINK,
    ) -> None:
        super().__init__(AnswerForm(thoughts, family, dict.fromkeys(tools, False), several))


class AnswerDeltas:
    """One answer as a message, or its pieces as the deltas that clients join to that message.

    Without `thoughts` these are left out.
    """

    def __init__(self, form: AnswerForm, *, opened: bool, thoughts: bool = True) -> None:
        self.reader = AnswerReader(form, opened=opened)
        self._form = form
        self._thoughts = thoughts

    @property
    def has_calls(self) -> bool:
        """Whether there was a call."""
        return self.reader.calls > 0

    def of(self, piece: Piece) -> list[dict[str, object]]:
        """Return the deltas of a piece, none if it has no text."""
        found = self.reader.push(piece.text)
        if piece.finish_reason is not None:
            found += self.reader.finish()
        return [
            self._delta(each)
            for each in found
            if self._thoughts or not isinstance(each, ThoughtsDelta)
        ]

    def message(self, text: str) -> dict[str, object]:
        """Return the message of a whole text; its content is null if it has only calls."""
        answer = joined([*self.reader.push(text), *self.reader.finish()])
        # OpenAI's clients expect null beside calls, and a text otherwise.
        content = answer.text or (None if answer.calls else "")
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning is not None and self._thoughts:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                self._begun(call.name, call.arguments) for call in answer.calls
            ]
        return message

    def _delta(self, event: AnswerEvent) -> dict[str, object]:
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ThoughtsDelta):
            return {"reasoning_content": event.text}
        if isinstance(event, CallStart):
            return {"tool_calls": [{"index": event.index, **self._begun(event.name, "")}]}
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}

    def _begun(self, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": new_call_id(self._form), "type": "function", "function": function}


def new_call_id(form: AnswerForm) -> str:
    """Return the id of a call."""
    length = 24 if form.calls is None else form.calls.id_length
    prefix = "call_" if length > 9 else ""  # Mistral's have nine characters
    return prefix + uuid.uuid4().hex[:length]
