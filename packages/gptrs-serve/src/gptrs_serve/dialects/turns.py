"""The messages of a chat from the items of other protocols: those of one turn are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gptrs_serve.bodies import ChatBody
from gptrs_serve.fields import converted

Part = Mapping[str, object]


class Turns:
    """Collects texts, thoughts and calls, in this order, into messages."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._goes_on = False
        """Whether further parts belong to the last message."""

    def begin(self) -> None:
        """Begin another message: later text of the same role is not joined to the last one."""
        self._goes_on = False

    def say(self, role: str, parts: Sequence[Part]) -> None:
        """Add parts of a role: to the message that has begun, or to thoughts alone.

        An instruction is added to one before it: most templates take a single one.
        """
        last = self._messages[-1] if self._messages else {}
        joins = self._goes_on or role == "system" or not last.get("content")
        if not (joins and last.get("role") == role and "tool_calls" not in last):
            last = self._new(role)
        self._goes_on = True
        if role == "system" and last["content"]:
            parts = [{"type": "text", "text": "\n\n"}, *parts]
        # Extended in place: copied for each block, 100,000 blocks would take an hour.
        last["content"].extend(parts)

    def _new(self, role: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": []}
        self._messages.append(message)
        return message

    def think(self, text: str) -> None:
        """Add thoughts, which begin a message of the model."""
        last = self._messages[-1] if self._messages else {}
        if last.get("role") == "assistant" and not last.get("content") and "tool_calls" not in last:
            last.setdefault("reasoning_content", []).append(text)
            return
        self._messages.append({"role": "assistant", "content": [], "reasoning_content": [text]})

    def call(self, number: str, name: str, arguments: str) -> None:
        """Add a call of the model, with its arguments as JSON."""
        last = self._messages[-1] if self._messages else {}
        if last.get("role") != "assistant":
            last = self._new("assistant")
        function = {"name": name, "arguments": arguments}
        call = {"id": number, "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)

    def result(self, number: str, parts: Sequence[Part], name: str | None = None) -> None:
        """Add the result of a call; `name` is that of the tool."""
        message = {"role": "tool", "tool_call_id": number, "content": list(parts), "name": name}
        self._messages.append({key: value for key, value in message.items() if value is not None})

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages so far; a list of texts alone becomes one text."""
        # One string where there are only texts: templates of models without images concatenate
        # `content`, and fail on lists.
        return [_message(each) for each in self._messages]


def _message(parts: Mapping[str, Any]) -> dict[str, Any]:
    message = {**parts, "content": _joined(parts["content"])}
    if "reasoning_content" in parts:
        message["reasoning_content"] = "".join(parts["reasoning_content"])
    return message


def _joined(parts: Sequence[Part]) -> object:
    texts = [cast("str", part["text"]) for part in parts if part["type"] == "text"]
    if len(texts) < len(parts):
        return list(parts)
    return "".join(texts) if texts else None


def chat_of(fields: Mapping[str, object]) -> ChatBody:
    """Return a chat from its fields; RequestError for malformed ones."""
    return converted(fields, ChatBody)
