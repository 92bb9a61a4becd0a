"""The bodies of requests: every field that is read; any other is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct

from gptrs_runtime.generation.keywords import SamplingFields
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.option_fields import TEXTS, Missing, OptionField, Options, option_fields
from gptrs_runtime.verb_requests import ClassifyRequest, EmbedRequest, RankRequest, TagRequest
from gptrs_serve.problems import RequestError

Base = TypeVar("Base", bound=Struct)
Body = TypeVar("Body")
Count = Annotated[int, Meta(ge=1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Token = Annotated[int, Meta(ge=0)]
Tokens = list[Token]
_MOST_REGEX, _MOST_GRAMMAR = 8_192, 32_768
"""Characters of a form: what llguidance takes grows with their square, 0.2 s for such a regex."""
Texts = str | Annotated[list[str], Meta(min_length=1, max_length=2048)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Things that a stream tells besides."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: Literal[False] = False


class TextFormat(Struct, tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObject(Struct, tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class NamedSchema(Struct, forbid_unknown_fields=True):
    """A JSON schema; answers keep to it, with `strict` or without."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchema(Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    json_schema: NamedSchema


def _with_fields_of(options: Mapping[str, OptionField], base: type[Base]) -> type[Base]:
    """Return a body with a field for each option that requests have under its own name.

    Those of a generation have no defaults: the files of the model may say what holds.
    """
    told: list[Any] = []
    for name, field in options.items():
        bounds = field.option.request
        if isinstance(bounds, Meta):
            about = Meta(description=bounds.description or field.meta.description)
            kind: Any = Annotated[field.type, bounds, about]
            default = None if base is Struct else field.default
            kind = kind | None if default is None and not field.required else kind
            told.append((name, kind) if field.required else (name, kind, default))
    made = msgspec.defstruct(
        "Options", told, bases=(base,), forbid_unknown_fields=True, kw_only=True
    )
    return cast("type[Base]", made)


class Generating(_with_fields_of(all_options(), Struct), forbid_unknown_fields=True, kw_only=True):
    """Fields that chat and plain completions share.

    What chooses the tokens, such as `temperature`, follows from the options of a generation.
    Fields of OpenAI that would change nothing here are taken as long as they ask for nothing.
    """

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    logit_bias: dict[str, Bias] | None = None
    ignore_eos: bool = False
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_time: Annotated[float, Meta(gt=0)] | None = None
    regex: Annotated[str, Meta(max_length=_MOST_REGEX)] | None = None
    grammar: Annotated[str, Meta(max_length=_MOST_GRAMMAR)] | None = None
    user: str | None = None

    def sampling(self) -> SamplingFields:
        """Return the given fields that choose the tokens."""
        told = {
            name: getattr(self, name)
            for name, field in all_options().items()
            if isinstance(field.option.request, Meta)
        }
        return cast("SamplingFields", {k: v for k, v in told.items() if v is not None})


class CompletionBody(Generating, kw_only=True):
    """`/v1/completions`."""

    prompt: str | Annotated[list[Token | str | Tokens], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0)] = 16
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: Literal[""] | None = None


ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Struct, forbid_unknown_fields=True):
    """A function that a model may call; `parameters` is a JSON schema of an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, tag="function", forbid_unknown_fields=True):
    """A tool: all are functions."""

    function: Function


class ToolReference(Struct, forbid_unknown_fields=True):
    """The name of a function among the tools."""

    name: str


class NamedTool(Struct, tag="function", forbid_unknown_fields=True):
    """The tool that is to be called."""

    function: ToolReference


ToolChoice = Literal["none", "auto", "required"] | NamedTool

Message = Annotated[
    dict[str, Any],
    Meta(extra_json_schema={"properties": {"role": {"type": "string"}}, "required": ["role"]}),
]


class ChatBody(Generating, kw_only=True):
    """`/v1/chat/completions`. Messages are read by the template of the model."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObject | JsonSchema | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class TaskFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """The request of a task: the fields that the table of tasks has, under the protocol's names."""

    model: str | None = None

    def asked(self, request: type[Options]) -> dict[str, Any]:
        """Return the given fields of `request` by the names that the runtime has for them."""
        given: dict[str, Any] = {}
        for name, field in option_fields(request).items():
            told = field.option.request
            if isinstance(told, Missing):
                continue
            value = getattr(self, name if isinstance(told, Meta) else told)
            if field.kind is TEXTS:
                value = [value] if isinstance(value, str) else value
                value = [each if isinstance(each, str) else each.text for each in value]
            if value is not None:
                given[name] = value
        return given


class Reading(TaskFields, kw_only=True):
    """Texts that are longer than a model reads are refused unless they may be cut.

    `truncate` is the word of TEI; vLLM has `truncate_prompt_tokens`, -1 for what the model reads.
    """

    truncate_prompt_tokens: Literal[-1] | None = None

    def asked(self, request: type[Options]) -> dict[str, Any]:
        """Return the same; `truncate` says whether texts may be cut."""
        return {"truncate": self.truncate_prompt_tokens is not None, **super().asked(request)}


class EmbeddingBody(_with_fields_of(option_fields(EmbedRequest), Reading), kw_only=True):
    """`/v1/embeddings`."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class Document(Struct, forbid_unknown_fields=True):
    """A document as an object, as some clients send it."""

    text: str


class RerankBody(_with_fields_of(option_fields(RankRequest), Reading), kw_only=True):
    """`/v1/rerank`, as Jina and Cohere have it."""

    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=2048)]
    top_n: Count | None = None
    return_documents: bool = False


class ClassifyBody(_with_fields_of(option_fields(ClassifyRequest), Reading), kw_only=True):
    """`/v1/classify`, as vLLM has it."""

    input: Texts
    user: str | None = None


class TagBody(_with_fields_of(option_fields(TagRequest), TaskFields), kw_only=True):
    """`/v1/tag`: the parts of texts that a classifier of tokens finds."""

    input: Texts


TASKS: Final[Mapping[str, type[TaskFields]]] = {
    "embed": EmbeddingBody,
    "rank": RerankBody,
    "classify": ClassifyBody,
    "tag": TagBody,
}
"""The bodies of tasks by their names."""


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`/tokenize`: a text, or messages as the template of the model renders them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`/detokenize`."""

    tokens: Tokens
    model: str | None = None


def decoded(data: bytes, kind: type[Body]) -> Body:
    """Return a body, in which null is left out; RequestError says which field is wrong."""
    try:
        return _decoded(data, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        param = place.rstrip("`").lstrip(".") or None
        if "unknown field" in message:
            param = message.split("`")[1]
            raise RequestError(
                f"`{param}` is not a parameter that this server supports",
                param=param,
                code="unsupported_parameter",
            ) from error
        where = f"`{param}`: " if param else ""
        raise RequestError(f"{where}{message}", param=param, code="invalid_value") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", code="invalid_json") from error


def _decoded(data: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        if b"null" not in data:
            raise
        told = _without_nulls(msgspec.json.decode(data), _known_type(kind))
        return msgspec.json.decode(json.dumps(told).encode(), type=kind)


@cache
def _known_type(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _without_nulls(value: Any, kind: msgspec.inspect.Type) -> Any:
    """Return a value without the fields of its structs that are null; unknown ones, too."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            value = _without_nulls(value, each)
    elif isinstance(kind, msgspec.inspect.ListType) and isinstance(value, list):
        return [_without_nulls(each, kind.item_type) for each in cast("list[Any]", value)]
    elif isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        types = {field.encode_name: field.type for field in kind.fields}
        return {
            name: _without_nulls(each, types[name]) if name in types else each
            for name, each in fields.items()
            if each is not None
        }
    return value
