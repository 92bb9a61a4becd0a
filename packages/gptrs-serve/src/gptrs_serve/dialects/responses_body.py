"""The bodies of OpenAI's Responses API, and the chats that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Struct

from gptrs_serve.bodies import Advice, ChatBody, Effort, Model, Temperature, Tier, ToolName, TopP
from gptrs_serve.dialects.turns import Turns, chat_of
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.problems import RequestError

Role = Literal["user", "assistant", "system", "developer"]


class InputText(Struct, tag="input_text", forbid_unknown_fields=True):
    """Text."""

    text: str
    prompt_cache_breakpoint: Any = None


class OutputText(Struct, tag="output_text", forbid_unknown_fields=True):
    """Text of an answer."""

    text: str
    annotations: Any = None
    logprobs: Any = None


class Refusal(Struct, tag="refusal", forbid_unknown_fields=True):
    """A refusal as an answer."""

    refusal: str

    @property
    def text(self) -> str:
        """The text."""
        return self.refusal


class InputImage(Struct, tag="input_image", forbid_unknown_fields=True):
    """An image as a `data:` URL; images have one resolution here."""

    image_url: str
    detail: Any = None
    file_id: None = None


Content = InputText | OutputText | Refusal | InputImage


class MessageItem(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a role."""

    role: Role
    content: str | list[Content]
    type: Literal["message"] | None = None
    id: str | None = None
    status: str | None = None
    phase: Any = None


class ReasoningText(Struct, tag="reasoning_text", forbid_unknown_fields=True):
    """Thoughts."""

    text: str


class ReasoningItem(Struct, tag="reasoning", forbid_unknown_fields=True, kw_only=True):
    """Thoughts of the model; summaries and encrypted content come from other services."""

    content: list[ReasoningText] | None = None
    summary: list[Any] = []
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


class CallItem(Struct, tag="function_call", forbid_unknown_fields=True, kw_only=True):
    """A call of a function."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: Any = None


class CallOutputItem(Struct, tag="function_call_output", forbid_unknown_fields=True, kw_only=True):
    """The result of a call."""

    call_id: str
    output: str | list[Content]
    id: str | None = None
    status: str | None = None
    caller: Any = None


class CustomCallItem(Struct, tag="custom_tool_call", forbid_unknown_fields=True, kw_only=True):
    """A call of a tool whose input is text."""

    call_id: str
    name: str
    input: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: Any = None


class CustomOutputItem(
    Struct, tag="custom_tool_call_output", forbid_unknown_fields=True, kw_only=True
):
    """The result of such a call."""

    call_id: str
    output: str | list[Content]
    id: str | None = None
    status: str | None = None
    caller: Any = None


_ITEMS: dict[str, type[Struct]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CustomOutputItem,
}
"""The items of an input by type."""


class FunctionTool(Struct, tag="function", forbid_unknown_fields=True, kw_only=True):
    """A function that the client runs."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    output_schema: Any = None


class TextToolFormat(Struct, tag="text", forbid_unknown_fields=True):
    """Any text."""


class CustomTool(Struct, tag="custom", forbid_unknown_fields=True, kw_only=True):
    """A tool whose input is text, which the client runs."""

    name: ToolName
    description: str | None = None
    format: TextToolFormat | None = None
    defer_loading: Literal[False] | None = None


_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of a tool whose input is text."""


class NamedChoice(Struct, tag="function", forbid_unknown_fields=True):
    """This function must be called."""

    name: str


class CustomChoice(Struct, tag="custom", forbid_unknown_fields=True):
    """This tool must be called."""

    name: str


class AllowedChoice(Struct, tag="allowed_tools", forbid_unknown_fields=True):
    """Only some of the tools may be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice | CustomChoice]


class TextFormat(Struct, tag="text", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(Struct, tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class SchemaFormat(Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, forbid_unknown_fields=True):
    """The form of the answer."""

    format: TextFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Struct, forbid_unknown_fields=True):
    """How much to think; thoughts are returned whole, never summarized."""

    effort: Effort | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Further contents of a stream: none."""

    include_obfuscation: Literal[False] | None = None


class ResponsesFields(RequestFields, kw_only=True):
    """The fields that `/v1/responses` and `/v1/responses/input_tokens` share."""

    refused: ClassVar[Mapping[str, str]] = {
        "conversation": "use `previous_response_id`",
        "prompt": "no prompts are stored; send `instructions` and `input`",
        "context_management": "`truncation` leaves out what exceeds the context",
        "moderation": "the server contacts no other servers",
        "top_logprobs": "`/v1/chat/completions` returns log-probabilities",
    }
    input: Annotated[
        str | Annotated[list[dict[str, Any]], Meta(min_length=1)],
        Meta(
            description="A text, or items: messages with texts and images, thoughts, calls and"
            " their results."
        ),
    ]
    model: Model | None = None
    instructions: Annotated[str, Meta(description="A system message before all others.")] | None = (
        None
    )
    previous_response_id: Annotated[str, Meta(description="Continue a stored response.")] | None = (
        None
    )
    tools: (
        Annotated[
            Annotated[list[dict[str, Any]], Meta(max_length=128)],
            Meta(description="Functions and custom text tools, which the client runs."),
        ]
        | None
    ) = None
    tool_choice: (
        Annotated[
            Literal["none", "auto", "required"] | NamedChoice | CustomChoice | AllowedChoice,
            Meta(description="`auto`, `none`, `required`, one tool, or `allowed_tools`."),
        ]
        | None
    ) = None
    parallel_tool_calls: (
        Annotated[bool, Meta(description="False: call at most one tool.")] | None
    ) = None
    text: (
        Annotated[TextConfig, Meta(description="`format`: `text`, `json_object`, `json_schema`.")]
        | None
    ) = None
    reasoning: (
        Annotated[
            Reasoning,
            Meta(description="`effort`, like `reasoning_effort`; thoughts are never summarized."),
        ]
        | None
    ) = None
    truncation: (
        Annotated[
            Literal["auto", "disabled"],
            Meta(
                description="`auto`: leave out the oldest turns of input that exceeds the context;"
                " by default such input is refused."
            ),
        ]
        | None
    ) = None

    def custom_tools(self) -> frozenset[str]:
        """Return the names of tools whose input is text."""
        return frozenset(tool.name for tool in self._known() if isinstance(tool, CustomTool))

    def _known(self) -> list[FunctionTool | CustomTool]:
        """Return the tools; RequestError for those that only OpenAI's own server can run."""
        found: list[FunctionTool | CustomTool] = []
        for number, tool in enumerate(self.tools or ()):
            kinds: dict[object, type[FunctionTool | CustomTool]] = {
                "function": FunctionTool,
                "custom": CustomTool,
            }
            kind = kinds.get(tool.get("type"))
            if kind is None:
                raise RequestError(
                    f"`tools[{number}]` is of the type {str(tool.get('type'))[:40]!r}; this server"
                    " has `function`, and `custom` with text: the client runs them",
                    param="tools",
                    code="unsupported_parameter",
                )
            found.append(converted(tool, kind, f"tools[{number}]"))
        return found

    def said(self) -> list[dict[str, Any]]:
        """Return the messages of the input; RequestError for unknown items."""
        turns = Turns()
        if isinstance(self.input, str):
            turns.say("user", [{"type": "text", "text": self.input}])
            return turns.messages()
        for number, item in enumerate(self.input):
            name = str(item.get("type") or "message")
            if name not in _ITEMS:
                raise RequestError(
                    f"`input[{number}]` is of the type {name[:40]!r}; there are"
                    f" {', '.join(_ITEMS)}",
                    param="input",
                )
            _add(turns, converted(item, _ITEMS[name], f"input[{number}]"))
        return turns.messages()

    def chat(self, messages: Sequence[Mapping[str, Any]], **more: object) -> ChatBody:
        """Return the chat with `messages`, the earlier and the new ones."""
        if not messages:  # reasoning alone is none
            raise RequestError("`input` has no message", param="input")
        text = self.text or TextConfig()
        form: dict[str, object] | None = None
        if isinstance(text.format, SchemaFormat):
            named = msgspec.to_builtins(text.format)
            del named["type"]
            form = {"type": "json_schema", "json_schema": named}
        elif text.format is not None:
            form = cast("dict[str, object]", msgspec.to_builtins(text.format))
        tools = [_function(tool) for tool in self._known()]
        return chat_of(
            {
                "model": self.model,
                "messages": _instructed(self.instructions, messages),
                "tools": tools or None,
                "tool_choice": _choice(self.tool_choice),
                "parallel_tool_calls": self.parallel_tool_calls,
                "response_format": form,
                "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
                **more,
            }
        )


class InputTokensBody(ResponsesFields, kw_only=True):
    """`/v1/responses/input_tokens`."""


class ResponsesBody(ResponsesFields, kw_only=True):
    """`/v1/responses`."""

    stream: Annotated[bool, Meta(description="Stream the answer as events.")] = False
    max_output_tokens: (
        Annotated[int, Meta(ge=1, description="Most tokens, including thoughts.")] | None
    ) = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    store: (
        Annotated[
            bool,
            Meta(
                description="False: do not store the response. Stored responses can be"
                " continued for a while."
            ),
        ]
        | None
    ) = None
    metadata: (
        Annotated[dict[str, str], Meta(description="Returned unchanged with the response.")] | None
    ) = None
    include: (
        Annotated[
            list[Literal[
                "reasoning.encrypted_content", "file_search_call.results",
                "message.input_image.image_url", "computer_call_output.output.image_url",
                "code_interpreter_call.outputs", "web_search_call.action.sources",
                "web_search_call.results",
            ]],
            Meta(description="Thoughts are always returned; the other contents do not exist here.",
                 extra=NOTHING),
        ]
        | None
    ) = None  # fmt: skip
    background: (
        Annotated[
            Literal[False],
            Meta(description="Responses are never computed in the background.", extra=NOTHING),
        ]
        | None
    ) = None
    stream_options: (
        Annotated[StreamOptions, Meta(description="Events are never padded.", extra=NOTHING)] | None
    ) = None
    max_tool_calls: (
        Annotated[int, Meta(description="The server runs no tools.", extra=NOTHING)] | None
    ) = None
    service_tier: Tier | None = None
    user: Advice = None
    safety_identifier: Advice = None
    prompt_cache_key: Advice = None
    prompt_cache_retention: Advice = None
    prompt_cache_options: Advice = None
    client_metadata: Advice = None

    def asked(self, messages: Sequence[Mapping[str, Any]]) -> ChatBody:
        """Return the chat with `messages` and its options."""
        return self.chat(
            messages,
            stream=self.stream,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
        )


def _instructed(
    instructions: str | None, messages: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return messages after instructions, which are joined with a first developer message."""
    if not instructions:
        return list(messages)
    first: Mapping[str, Any] = messages[0] if messages else {}
    if first.get("role") != "system" or not isinstance(first.get("content"), str):
        return [{"role": "system", "content": instructions}, *messages]
    # Most templates take one system message, and only at the beginning.
    return [{**first, "content": f"{instructions}\n\n{first['content']}"}, *messages[1:]]


def _add(turns: Turns, item: Struct) -> None:
    turns.begin()
    if isinstance(item, MessageItem):
        # Templates know `system`; `developer` is OpenAI's newer word for it.
        role = "system" if item.role == "developer" else item.role
        turns.say(role, _parts(item.content))
    elif isinstance(item, ReasoningItem):
        for part in item.content or ():
            turns.think(part.text)
    elif isinstance(item, CallItem):
        turns.call(item.call_id, item.name, item.arguments)
    elif isinstance(item, CustomCallItem):
        turns.call(item.call_id, item.name, json.dumps({"input": item.input}))
    elif isinstance(item, CallOutputItem | CustomOutputItem):
        turns.result(item.call_id, _parts(item.output))


def _parts(content: str | list[Content]) -> list[dict[str, object]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "image_url", "image_url": {"url": part.image_url}}
        if isinstance(part, InputImage)
        else {"type": "text", "text": part.text}
        for part in content
    ]


def _function(tool: FunctionTool | CustomTool) -> dict[str, object]:
    if isinstance(tool, CustomTool):
        told = {"name": tool.name, "description": tool.description, "parameters": _INPUT}
        return {"type": "function", "function": {**told, "strict": True}}
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: getattr(tool, name) for name in names}}


def _choice(choice: str | NamedChoice | CustomChoice | AllowedChoice | None) -> object:
    if isinstance(choice, str) or choice is None:
        return choice
    if isinstance(choice, AllowedChoice):
        tools = [_choice(each) for each in choice.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
    return {"type": "function", "function": {"name": choice.name}}
