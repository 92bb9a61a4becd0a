"""Messages, and the deltas of a stream, with the calls of tools in them."""

from __future__ import annotations

from typing import Any

from gptrs.runtime.serving.answers import Piece
from gptrs_serve.tools.parser import CallArguments, CallParser, CallStart, Delta, TextDelta
from gptrs_serve.tools.use import ToolUse


class AnswerDeltas:
    """The pieces of one answer as the deltas that clients join to a message."""

    def __init__(self, tools: ToolUse | None) -> None:
        self._tools = tools
        self._parser: CallParser | None = tools.new_parser() if tools else None

    @property
    def has_calls(self) -> bool:
        """Whether there was a call."""
        return self._parser is not None and self._parser.calls > 0

    def of(self, piece: Piece) -> list[dict[str, object]]:
        """Return the deltas of a piece, none for one without text."""
        if self._tools is None or self._parser is None:
            return [{"content": piece.text}] if piece.text else []
        found = self._parser.push(self._tools.shown(piece.text))
        if piece.finish_reason is not None:
            found += self._parser.finish()
        return [_delta(each) for each in found]


def _delta(delta: Delta) -> dict[str, object]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    told: dict[str, object] = {"index": delta.index}
    if isinstance(delta, CallStart):
        function = {"name": delta.name, "arguments": ""}
        told |= {"id": delta.id, "type": "function", "function": function}
    else:
        told["function"] = {"arguments": delta.text}
    return {"tool_calls": [told]}


def message_of(text: str, tools: ToolUse | None) -> dict[str, object]:
    """Return the message of a whole answer; its content is null where it has calls alone."""
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
    if tools is None:
        return message
    parser = tools.new_parser()
    found = [*parser.push(tools.shown(text)), *parser.finish()]
    calls: list[dict[str, Any]] = []
    for delta in found:
        if isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.id, "type": "function", "function": function})
        elif isinstance(delta, CallArguments):
            calls[delta.index]["function"]["arguments"] += delta.text
    said = "".join(delta.text for delta in found if isinstance(delta, TextDelta))
    if calls:
        message |= {"content": said or None, "tool_calls": calls}
    else:
        message["content"] = said
    return message
