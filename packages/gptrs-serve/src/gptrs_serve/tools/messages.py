"""Calls of tools in the messages of a conversation."""

from __future__ import annotations

import json
from typing import Any, cast

from gptrs_serve.problems import RequestError


def with_call_objects(number: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have objects as arguments: templates write them as JSON.

    RequestError for a call that is none.
    """
    calls: object = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise _no_call(number)
    return {**message, "tool_calls": [_call(number, c) for c in cast("list[object]", calls)]}


def _call(number: int, call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _no_call(number)
    stated = cast("dict[str, Any]", call)
    function = stated.get("function")
    if not isinstance(function, dict):
        raise _no_call(number)
    known = cast("dict[str, Any]", function)
    given: object = known.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            raise _no_call(number) from error
    if not isinstance(given, dict) or not isinstance(known.get("name"), str):
        raise _no_call(number)
    return {**stated, "function": {**known, "arguments": given}}


def _no_call(number: int) -> RequestError:
    return RequestError(
        f"message {number} has a tool call that is not of the form"
        ' {"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}',
        param="messages",
    )
