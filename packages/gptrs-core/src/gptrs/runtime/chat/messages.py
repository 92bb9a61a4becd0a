"""The messages of a conversation, as chat templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from gptrs.errors import UsageError
from gptrs.quoting import shown_value

Message = Mapping[str, object]
"""An object such as `{"role": "user", "content": "Hello"}`; templates may read further keys."""

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Keys of the thoughts of a message, the first found counts; templates read the first two."""


def checked_messages(value: object) -> list[Message]:
    """Return `value`; UsageError unless it is a list of objects, each with a role."""
    messages = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    if not messages:
        raise UsageError("messages must be a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not _has_role(cast("Message", message)):
            shown = shown_value(cast("object", message))
            raise UsageError(f"message {number} must be an object with a `role`, got {shown}")
    return cast("list[Message]", list(messages))


def _has_role(message: Message) -> bool:
    return isinstance(message.get("role"), str)


def as_templates_read(message: Message) -> dict[str, object]:
    """Return the message without nulls, its thoughts under both keys that templates read."""
    stated = {key: value for key, value in message.items() if value is not None}
    thoughts = next((stated[name] for name in _REASONING if name in stated), None)
    if thoughts is None:
        return stated
    return {"thinking": thoughts, **stated, "reasoning_content": thoughts}
