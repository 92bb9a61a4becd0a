"""A conversation with all inputs of its chat template, shared by HTTP, files and Python."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr

from gptrs.errors import UsageError
from gptrs.quoting import shown_value
from gptrs_runtime.chat.messages import Message, read_messages, read_tools, require_free_names

_VARIABLES: Final = "chat_template_kwargs"
_FLAGS: Final = ("add_generation_prompt", "continue_final_message")
_EFFORT: Final = "reasoning_effort"
_USUAL_EFFORTS: Final = ("none", "medium")
"""Efforts that are ignored if a template does not read them: `medium` is the default of the API."""
FIELDS: Final = ("messages", "tools", _VARIABLES, "enable_thinking", _EFFORT, *_FLAGS)
"""The request fields that define a conversation, by JSON name."""
_MARK: Final = "CONTINUE_THE_FINAL_MESSAGE "
"""Appended to the message to be continued while it is rendered; the template may strip its
space."""


class Conversation(Struct, frozen=True):
    """Messages and the other inputs of a chat template: a prompt for all generating functions.

    Messages are as in OpenAI's API: `content` is a text or a list of parts, `arguments` of calls
    are objects or JSON as text. `tools` are functions that the model may call. `variables` are
    further template variables with JSON values, such as `documents` and `enable_thinking`. With
    `continue_final_message` the last message is continued; otherwise the template starts an answer,
    unless `add_generation_prompt` is False. UsageError for malformed messages and tools, and for
    variables that would hide the template's inputs.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] | None = None
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    needs: Sequence[str] = ()
    """Variables that the template must read; otherwise the request is refused."""

    def __post_init__(self) -> None:
        force_setattr(self, "messages", read_messages(self.messages))
        force_setattr(self, "tools", read_tools(self.tools))
        require_free_names(self.variables, ())
        if self.add_generation_prompt and self.continue_final_message:
            raise UsageError(
                "`add_generation_prompt` and `continue_final_message` exclude each other",
                hint="set the first one to false, or leave it out",
            )
        if self.continue_final_message:
            _marked(self.messages)

    @property
    def answers(self) -> bool:
        """Whether the text ends at the start of an answer."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def with_messages(self, messages: Sequence[Message]) -> Conversation:
        """Return the conversation with other messages, which are in template form."""
        made = copy.copy(self)
        force_setattr(made, "messages", list(messages))
        return made

    def rendered_messages(self) -> Sequence[Message]:
        """Return the messages to render; `end_of` then finds the end of a continued message."""
        return _marked(self.messages) if self.continue_final_message else self.messages

    def end_of(self, text: str) -> str | None:
        """Cut a rendered text after the continued message; None if the template dropped the
        message.

        Like transformers' `apply_chat_template`, which leaves a mark in the text if the template
        writes the message twice.
        """
        if not self.continue_final_message:
            return text
        index = text.rfind(_MARK.strip())
        if index < 0:
            return None
        found = text[:index] if text.startswith(_MARK, index) else text[:index].rstrip()
        for mark in (_MARK, _MARK.strip()):
            found = found.replace(mark, "")
        return found if _last_text(self.messages).strip() in found else None


def conversation_of(fields: Mapping[str, object]) -> Conversation:
    """Return the conversation of a request with (some of) the `FIELDS`; a null is left out.

    UsageError as of `Conversation`, and for fields of a wrong type.
    """
    given = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    variables = given.get(_VARIABLES, {})
    if not isinstance(variables, Mapping):
        raise UsageError(f"`{_VARIABLES}` must be an object, got {shown_value(variables)}")
    inputs = {str(key): value for key, value in cast("Mapping[object, object]", variables).items()}
    for name in ("enable_thinking", _EFFORT):
        if name in given and inputs.setdefault(name, given[name]) != given[name]:
            raise UsageError(f"`{name}` and `{_VARIABLES}.{name}` differ", hint="give one of them")
    for name, kind in ((_EFFORT, str), *((name, bool) for name in ("enable_thinking", *_FLAGS))):
        if name in given and not isinstance(given[name], kind):
            need = "text" if kind is str else "true or false"
            raise UsageError(f"`{name}` must be {need}, got {shown_value(given[name])}")
    effort = given.get(_EFFORT, "none")
    if _EFFORT in given and effort == "none":
        inputs.setdefault("enable_thinking", False)
    return Conversation(
        cast("Sequence[Message]", given.get("messages", ())),
        cast("Sequence[Message] | None", given.get("tools")),
        inputs,
        cast("bool | None", given.get("add_generation_prompt")),
        bool(given.get("continue_final_message")),
        () if effort in _USUAL_EFFORTS else (_EFFORT,),
    )


def _last_text(messages: Sequence[Message]) -> str:
    """Return the last text of the last message; UsageError if there is none to continue."""
    content = messages[-1].get("content")
    if isinstance(content, list):
        parts = cast("list[Message]", content)
        content = next((part["text"] for part in reversed(parts) if part["type"] == "text"), None)
    if not isinstance(content, str):
        raise UsageError("`continue_final_message` needs a last message with a text to continue")
    return content


def _marked(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the mark appended to the last text."""
    last, text = messages[-1], _last_text(messages)
    content = last["content"]
    if isinstance(content, list):
        parts = cast("list[Message]", list(cast("list[object]", content)))
        index = max(n for n, part in enumerate(parts) if part["type"] == "text")
        parts[index] = {**parts[index], "text": text + _MARK}
        return [*messages[:-1], {**last, "content": parts}]
    return [*messages[:-1], {**last, "content": text + _MARK}]
