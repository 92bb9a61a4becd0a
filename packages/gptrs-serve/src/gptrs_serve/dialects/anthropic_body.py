"""The bodies of Anthropic's Messages API, and the chats that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from gptrs_serve.bodies import Advice, ChatBody, Model, Stops, Temperature, Tier, ToolName, TopP
from gptrs_serve.dialects.turns import Turns, chat_of
from gptrs_serve.fields import NOTHING, RequestFields
from gptrs_serve.problems import RequestError

_Cached = Annotated[Any, Meta(description="All prompts are cached anyway.", extra=NOTHING)]


class Block(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message."""

    cache_control: Any = None


class TextBlock(Block, tag="text", kw_only=True):
    """Text; citations have no effect."""

    text: str
    citations: Any = None


class Base64Source(Struct, tag="base64", forbid_unknown_fields=True):
    """The bytes of an image."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Struct, tag="url", forbid_unknown_fields=True):
    """A `data:` URL; no others are opened."""

    url: str


class ImageBlock(Block, tag="image", kw_only=True):
    """An image."""

    source: Base64Source | UrlSource

    @property
    def url(self) -> str:
        """The image as a URL."""
        if isinstance(self.source, UrlSource):
            return self.source.url
        return f"data:{self.source.media_type};base64,{self.source.data}"


class TextSource(Struct, tag="text", forbid_unknown_fields=True):
    """The text of a document."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class DocumentBlock(Block, tag="document", kw_only=True):
    """A document of plain text, optionally with a title and a context."""

    source: TextSource
    title: str | None = None
    context: str | None = None
    citations: Any = None

    @property
    def text(self) -> str:
        """The whole document as one text."""
        parts = (self.title, self.context, self.source.data)
        return "\n\n".join(part for part in parts if part)


class ThinkingBlock(Block, tag="thinking", kw_only=True):
    """Thoughts of an answer; the signature is ignored."""

    thinking: str
    signature: str = ""


class RedactedBlock(Block, tag="redacted_thinking", kw_only=True):
    """Thoughts of another service, which only that service can read."""

    data: str


class ToolUseBlock(Block, tag="tool_use", kw_only=True):
    """A call of a tool."""

    id: str
    name: ToolName
    input: dict[str, Any]
    caller: Any = None


class ToolResultBlock(Block, tag="tool_result", kw_only=True):
    """The result of a call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] = ""
    is_error: bool = False


UserBlock = TextBlock | ImageBlock | DocumentBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock


class UserMessage(Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    """A message of the user, with results of tools."""

    content: str | list[UserBlock]


class AssistantMessage(Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    """A message of the model."""

    content: str | list[AssistantBlock]


class SystemMessage(Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    """An instruction among the messages."""

    content: str | list[TextBlock]


class ClientTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class AutoChoice(Struct, tag="auto", forbid_unknown_fields=True):
    """The model decides."""

    disable_parallel_tool_use: bool = False


class AnyChoice(Struct, tag="any", forbid_unknown_fields=True):
    """Some tool must be called."""

    disable_parallel_tool_use: bool = False


class ToolChoice(Struct, tag="tool", forbid_unknown_fields=True):
    """This tool must be called."""

    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(Struct, tag="none", forbid_unknown_fields=True):
    """No tool is called."""


class Enabled(Struct, tag="enabled", forbid_unknown_fields=True):
    """Thoughts; the model ends them, not `budget_tokens`."""

    budget_tokens: int | None = None
    display: Any = None


class Adaptive(Struct, tag="adaptive", forbid_unknown_fields=True):
    """Thoughts according to the template's default."""

    display: Any = None


class Disabled(Struct, tag="disabled", forbid_unknown_fields=True):
    """No thoughts, if the template supports that."""


class OutputFormat(Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True):
    """The form of the answer, and an effort, which templates may use."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class KeptThinking(Struct, tag="clear_thinking_20251015", forbid_unknown_fields=True):
    """Thoughts of all turns are kept, as always."""

    keep: Literal["all"]


class ContextManagement(Struct, forbid_unknown_fields=True):
    """Edits of a conversation before the model reads it; none of the supported ones changes it."""

    edits: list[KeptThinking] = []


class MessagesFields(RequestFields, kw_only=True):
    """The fields that `/v1/messages` and `/v1/messages/count_tokens` share."""

    refused: ClassVar[Mapping[str, str]] = {
        "container": "the server runs no client programs",
        "mcp_servers": "the server contacts no other servers",
        "fallbacks": "name a single model",
        "compaction": "input that exceeds the context is refused",
    }
    messages: Annotated[
        Annotated[list[UserMessage | AssistantMessage | SystemMessage], Meta(min_length=1)],
        Meta(
            description="Texts, images, plain documents, thoughts, calls and their results; if the"
            " last one is of the assistant, the answer continues it."
        ),
    ]
    model: Model | None = None
    system: (
        Annotated[str | list[TextBlock], Meta(description="A system message before all others.")]
        | None
    ) = None
    tools: (
        Annotated[
            Annotated[list[ClientTool], Meta(max_length=128)],
            Meta(description="Functions that the model may call; the client runs them."),
        ]
        | None
    ) = None
    tool_choice: (
        Annotated[
            AutoChoice | AnyChoice | ToolChoice | NoChoice,
            Meta(description="`auto`, `any`, `tool` or `none`; optionally one call at most."),
        ]
        | None
    ) = None
    thinking: (
        Annotated[
            Enabled | Adaptive | Disabled,
            Meta(
                description="Sets `enable_thinking` and `thinking` of the template; `budget_tokens`"
                " bounds nothing, `adaptive` follows the template."
            ),
        ]
        | None
    ) = None
    output_config: (
        Annotated[
            OutputConfig,
            Meta(description="`format`: a JSON schema; `effort`: for templates that use it."),
        ]
        | None
    ) = None
    output_format: (
        Annotated[OutputFormat, Meta(description="Older name of `output_config.format`.")] | None
    ) = None
    context_management: (
        Annotated[
            ContextManagement,
            Meta(description="Conversations are always read whole.", extra=NOTHING),
        ]
        | None
    ) = None
    cache_control: _Cached | None = None
    speed: Tier | None = None
    thread: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Refused with a code that makes clients send all messages: none are"
                " kept."
            ),
        ]
        | None
    ) = None

    def chat(self, **more: object) -> ChatBody:
        """Return the requested chat; RequestError for what cannot be done."""
        if self.thread is not None:
            raise RequestError(
                "`thread`: conversations are not kept here; send all messages",
                param="thread",
                code="thread_unsupported_request",
            )
        turns = Turns()
        if self.system is not None:
            turns.say("system", _parts(self.system))
        for message in self.messages:
            _add(turns, message)
        fields: dict[str, object] = {
            "model": self.model,
            "messages": turns.messages(),
            **self._tools(),
            **more,
        }
        last = self.messages[-1]
        if isinstance(last, AssistantMessage):
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        variables: dict[str, object] = {}
        if isinstance(self.thinking, Enabled | Disabled):
            thinks = isinstance(self.thinking, Enabled)
            variables |= {"enable_thinking": thinks, "thinking": thinks}
        config = self.output_config or OutputConfig()
        if config.effort is not None:
            variables["reasoning_effort"] = config.effort
        form = config.format or self.output_format
        if form is not None:
            named = {"name": "output", "schema": form.schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        return chat_of({**fields, "chat_template_kwargs": variables or None})

    def _tools(self) -> dict[str, object]:
        choice, tools = self.tool_choice, self.tools
        fields: dict[str, object] = {}
        if tools:
            fields["tools"] = [
                {"type": "function", "function": {
                    "name": tool.name, "description": tool.description,
                    "parameters": tool.input_schema, "strict": tool.strict,
                }}
                for tool in tools
            ]  # fmt: skip
        if isinstance(choice, ToolChoice):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif choice is not None:
            names = {AutoChoice: "auto", AnyChoice: "required", NoChoice: "none"}
            fields["tool_choice"] = names[type(choice)]
        if tools and getattr(choice, "disable_parallel_tool_use", False):
            fields["parallel_tool_calls"] = False
        return fields


class CountBody(MessagesFields, kw_only=True):
    """`/v1/messages/count_tokens`."""


class MessagesBody(MessagesFields, kw_only=True):
    """`/v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, description="Most tokens, including thoughts.")]
    stream: Annotated[bool, Meta(description="Stream the answer.")] = False
    stop_sequences: (
        Annotated[
            Stops,
            Meta(description="End the answer before these texts."),
        ]
        | None
    ) = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: (
        Annotated[int, Meta(ge=-1, description="Sample among the K likeliest tokens.")] | None
    ) = None
    metadata: Advice = None
    service_tier: Tier | None = None
    inference_geo: Advice = None
    diagnostics: Advice = None

    def asked(self) -> ChatBody:
        """Return the chat with its options."""
        names = ("max_tokens", "stream", "temperature", "top_p", "top_k")
        options = {name: getattr(self, name) for name in names}
        return self.chat(**options, stop=self.stop_sequences)


def _add(turns: Turns, message: UserMessage | AssistantMessage | SystemMessage) -> None:
    """Add a message, whose blocks may become several messages of a chat."""
    turns.begin()
    if isinstance(message, SystemMessage):
        turns.say("system", _parts(message.content))
        return
    content = message.content
    blocks = [TextBlock(text=content)] if isinstance(content, str) else content
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            turns.result(block.tool_use_id, _parts(block.content))
        elif isinstance(block, ToolUseBlock):
            turns.call(block.id, block.name, json.dumps(block.input))
        elif isinstance(block, ThinkingBlock):
            turns.think(block.thinking)
        elif isinstance(block, RedactedBlock):
            raise RequestError("`redacted_thinking` comes from another service", param="messages")
        elif isinstance(message, AssistantMessage):
            turns.say("assistant", _parts([block]))
        else:
            turns.say("user", _parts([block]))


def _parts(
    content: str | list[TextBlock] | list[TextBlock | ImageBlock | DocumentBlock],
) -> list[dict[str, object]]:
    """Return the parts of a message of a chat."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "image_url", "image_url": {"url": block.url}}
        if isinstance(block, ImageBlock)
        else {"type": "text", "text": block.text}
        for block in content
    ]
