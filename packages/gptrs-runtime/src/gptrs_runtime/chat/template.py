"""The chat template of a model: its file, its variables, and its limits."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from msgspec import Struct, field

from gptrs.errors import MissingLibraryError, ModelError, UsageError
from gptrs.install_hints import install_extra
from gptrs.quoting import clipped, shown_value
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message, as_templates_read, require_free_names
from gptrs_runtime.chat.render_worker import WorkerError, json_of, worker
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.sources.recommended import first_choice
from gptrs_runtime.tokenization.special_tokens import named_tokens

_CONFIG: Final = "tokenizer_config.json"
_FILE: Final = "chat_template.jinja"
_WITH_TOOLS: Final = "tool_use"
"""The name of the template for conversations with tools."""
_NAMED: Final = "additional_chat_templates"
"""The folder of the files of further templates."""
_OF_PROCESSORS: Final = "chat_template.json"
"""The file in which older image-and-text processors keep the template."""

_MAX_SOURCE_BYTES: Final = 1_000_000
_MAX_CHARACTERS: Final = 10_000_000
_CPU_SECONDS: Final = 3
_SECONDS_PER_CONVERSATION: Final = 0.02
_MEMORY_BYTES: Final = 1 << 29
_WALL_FACTOR: Final = 20
"""Wall-clock seconds allowed per second of processor time, since the machine may be busy."""


class ChatTemplateError(ModelError):
    """A template fails, refuses a conversation, or takes too long.

    `conversation` is the index of the refused one, None if unknown.
    """

    def __init__(self, problem: str, conversation: int | None = None) -> None:
        super().__init__(
            f"the chat template cannot be used: {problem}",
            hint="continue a prompt in the form that the model expects, with `gptrs generate`",
        )
        self.conversation = conversation


class ChatTemplate(Struct, frozen=True):
    """A Jinja template, the special tokens that it may use, and variables for all of its texts."""

    source: str
    special_tokens: Mapping[str, str]
    variables: Mapping[str, object] = field(default_factory=dict[str, object])

    def render(self, conversation: Conversation | Sequence[Message]) -> str:
        """Return the text of a conversation.

        UsageError for malformed messages, and for variables that are not JSON or would hide the
        template's inputs. ChatTemplateError if the template fails, refuses the conversation, or
        takes more than a few seconds, 512 MiB of memory or ten million characters.
        """
        return self.render_all([conversation])[0]

    def render_all(self, conversations: Sequence[Conversation | Sequence[Message]]) -> list[str]:
        """Return the texts of several conversations; the limits apply to all of them together."""
        checked = [
            each if isinstance(each, Conversation) else Conversation(each) for each in conversations
        ]
        # A template is code from the internet: it runs in a process of its own, with bounded time,
        # memory and length of text.
        seconds = _CPU_SECONDS + int(_SECONDS_PER_CONVERSATION * len(checked))
        request: dict[str, object] = {
            "template": self.source,
            "variables": self.special_tokens,
            "conversations": [
                self._variables_of(each, each.rendered_messages()) for each in checked
            ],
            "characters": _MAX_CHARACTERS,
            "cpu_seconds": seconds,
            "memory_bytes": _MEMORY_BYTES,
        }
        texts = _answer(request, seconds * _WALL_FACTOR)
        # A second try costs only the models whose templates lose something.
        lost = [i for i, text in enumerate(texts) if _loses_the_user(text, checked[i].messages)]
        if lost:
            parts = [
                self._variables_of(
                    checked[i], [_in_parts(m) for m in checked[i].rendered_messages()]
                )
                for i in lost
            ]
            try:
                found = _answer({**request, "conversations": parts}, seconds * _WALL_FACTOR)
            except ChatTemplateError:
                # Parts may be what this template cannot read: then the first rendering stays.
                found = [texts[i] for i in lost]
            for i, text in zip(lost, found, strict=True):
                texts[i] = texts[i] if _loses_the_user(text, checked[i].messages) else text
        return [_ended(number, each, texts[number]) for number, each in enumerate(checked)]

    def _variables_of(
        self, conversation: Conversation, messages: Sequence[Message]
    ) -> dict[str, object]:
        """Return the variables that the template gets for a conversation."""
        for name in conversation.needs:
            # A variable that no template reads would be ignored silently, as if the model
            # disobeyed.
            if re.search(rf"\b{name}\b", self.source) is None:
                raise UsageError(
                    f"the chat template of this model reads no `{name}`", argument=name
                )
        require_free_names(self.variables, ())
        require_free_names(conversation.variables, list(self.special_tokens))
        return {
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": conversation.answers,
            **_checked({**self.variables, **conversation.variables}),
            "messages": [self._known_role(as_templates_read(message)) for message in messages],
        }

    def _known_role(self, message: dict[str, object]) -> dict[str, object]:
        """Return a message of a role that the template has: `developer` is `system` in most."""
        if message.get("role") != "developer" or "developer" in self.source:
            return message
        return {**message, "role": "system"}


def _ended(number: int, conversation: Conversation, text: str) -> str:
    found = conversation.end_of(text)
    if found is None:
        problem = "it drops the message that is to be continued"
        raise ChatTemplateError(problem, number)
    return found


def _loses_the_user(text: str, messages: Sequence[Message]) -> bool:
    """Return whether a rendered conversation lacks the user's last text.

    Templates of some image models only read contents that are lists of parts, and drop plain text.
    """
    contents = [message.get("content") for message in messages if message.get("role") == "user"]
    last = contents[-1] if contents else ""
    return isinstance(last, str) and last.strip() not in text


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _checked(given: Mapping[str, object]) -> Mapping[str, object]:
    """Return variables as JSON for the template's process; UsageError if they are not JSON."""
    try:
        # They cross to the other process as JSON.
        json_of(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"variables of a template must be JSON values: {error}") from error
    return given


def chat_template_of(files: ModelSource, name: str, *, with_tools: bool = False) -> ChatTemplate:
    """Return the template in chat_template.jinja, else in tokenizer_config.json, of model `name`.

    Models of images may have it in chat_template.json instead.

    Of several named templates, `tool_use` is used `with_tools`, if it exists, else `default`; files
    of others than the default are in `additional_chat_templates`. ModelError if it is missing or
    malformed.
    """
    settings = files.read_json(_CONFIG) or {}
    for_tools = (f"{_WITH_TOOLS}.jinja", _NAMED)
    source: object = _source_in(files, *for_tools) if with_tools else None
    if source is None:
        source = _source_in(files, _FILE)
    if source is None:
        names = (_WITH_TOOLS, "default") if with_tools else ("default",)
        stated = settings.get("chat_template")
        if stated is None:
            stated = (files.read_json(_OF_PROCESSORS) or {}).get("chat_template")
        source = _named_of(stated, names)
    if source is None:
        raise ModelError(
            f"`{name}` has no chat template",
            hint="continue a prompt with `gptrs generate`, without --chat; models that were tuned"
            f" to chat have a template in `{_FILE}` or `{_CONFIG}`; {first_choice('chat')}",
        )
    if not isinstance(source, str):
        raise ModelError(f"`chat_template` in {_CONFIG} must be text, found {shown_value(source)}")
    return ChatTemplate(source, named_tokens(files))


def _source_in(files: ModelSource, name: str, subfolder: str = "") -> str | None:
    """Return the text of a file, None if there is none; ModelError if it is not UTF-8."""
    data = files.read_bytes(name, subfolder, _MAX_SOURCE_BYTES)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"`{name}` is not UTF-8: byte {error.start}") from error


def _named_of(stated: object, names: Sequence[str]) -> object:
    """Return the template itself, or the first of `names` in a list of named templates."""
    if not isinstance(stated, list):
        return stated
    entries = [
        cast("Mapping[str, object]", entry)
        for entry in cast("list[object]", stated)
        if isinstance(entry, Mapping)
    ]
    # Reversed: of equal names, the first stays.
    found = {entry.get("name"): entry.get("template") for entry in reversed(entries)}
    for name in names:
        if name in found:
            return found[name]
    raise ModelError(f"none of the chat templates in {_CONFIG} is called `default`")


def _answer(request: dict[str, object], timeout: float) -> list[str]:
    """Return the rendered texts; ChatTemplateError gives the reason for a failure."""
    _require_jinja()
    try:
        answer = worker.ask(request, timeout)
    except WorkerError as error:
        raise ChatTemplateError(str(error)) from error
    if "problem" in answer:
        number = cast("int | None", answer["conversation"])
        raise ChatTemplateError(clipped(str(answer["problem"]), 300), number)
    return cast("list[str]", answer["texts"])


@functools.cache  # errors are not kept
def _require_jinja() -> None:
    if importlib.util.find_spec("jinja2") is None:
        raise MissingLibraryError(
            "chat templates need Jinja, which is not installed",
            hint=install_extra("gptrs-runtime", "chat"),
        )
