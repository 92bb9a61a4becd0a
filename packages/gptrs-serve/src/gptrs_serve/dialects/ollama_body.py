"""The bodies of Ollama's API, and the chats, completions and embeddings that they describe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from gptrs_serve.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    MinP,
    Stop,
    Stops,
    Temperature,
    Tool,
    ToolName,
    TopP,
)
from gptrs_serve.dialects.turns import Turns, chat_of
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.problems import RequestError

_Name = Annotated[
    str, Meta(min_length=1, description="The name of the model, optionally with `:latest`.")
]
_Kept = Annotated[
    Any,
    Meta(
        description="0 unloads the model after the answer, with `--admin`; else it stays loaded.",
        extra=NOTHING,
    ),
]
_NOT_KEPT = re.compile(r"0+(\.0*)?(ns|us|ms|s|m|h)?")
"""How Ollama's clients write a time of 0."""


def is_dropped(keep_alive: object) -> bool:
    """Return whether a client wants its model unloaded after the answer."""
    return keep_alive is not None and _NOT_KEPT.fullmatch(str(keep_alive)) is not None


_Loading = Annotated[
    Any, Meta(description="The command line determines how models are loaded.", extra=NOTHING)
]
Format = Annotated[
    Literal["", "json"] | dict[str, Any], Meta(description="`json`, or a JSON schema.")
]
Think = Annotated[
    bool | Literal["low", "medium", "high"],
    Meta(
        description="Sets `enable_thinking` and `thinking` of the template, or `reasoning_effort`."
    ),
]

# Settings of llama.cpp's samplers, which Ollama passes on.
TypicalP = Annotated[
    float, Meta(gt=0, le=1, description="Sample among tokens of typical surprise.")
]
RepeatPenalty = Annotated[
    float, Meta(gt=0, description="Above 1: make tokens that occurred before less likely.")
]
OpenAIPenalty = Annotated[float, Meta(ge=-2, le=2, description="The same as in OpenAI's API.")]
RepeatLastN = Annotated[
    int, Meta(description="`repeat_penalty` always covers all tokens.", extra=NOTHING)
]


class RuntimeOptions(RequestFields, kw_only=True):
    """`options`: how tokens are chosen."""

    refused: ClassVar[Mapping[str, str]] = {
        "tfs_z": "`typical_p` and `min_p` cut the distribution",
        "mirostat_tau": "`top_p` and `min_p` cut the distribution",
        "mirostat_eta": "`top_p` and `min_p` cut the distribution",
    }
    temperature: Temperature | None = None
    top_k: (
        Annotated[int, Meta(ge=-1, description="Sample among the K likeliest tokens; 0: all.")]
        | None
    ) = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    seed: Annotated[int, Meta(description="Make sampling repeatable; -1: any.")] | None = None
    num_predict: (
        Annotated[int, Meta(ge=-2, description="Most tokens; -1 and -2: the context.")] | None
    ) = None
    stop: (
        Annotated[
            Stop | Stops,
            Meta(description="End the answer before these texts."),
        ]
        | None
    ) = None
    repeat_penalty: RepeatPenalty | None = None
    presence_penalty: OpenAIPenalty | None = None
    frequency_penalty: OpenAIPenalty | None = None
    repeat_last_n: RepeatLastN | None = None
    mirostat: (
        Annotated[Literal[0], Meta(description="Mirostat is always off.", extra=NOTHING)] | None
    ) = None
    penalize_newline: (
        Annotated[
            Literal[True],
            Meta(description="Newlines are penalized like other tokens.", extra=NOTHING),
        ]
        | None
    ) = None
    num_ctx: _Loading = None
    num_keep: _Loading = None
    num_batch: _Loading = None
    num_gpu: _Loading = None
    main_gpu: _Loading = None
    num_thread: _Loading = None
    low_vram: _Loading = None
    use_mmap: _Loading = None
    use_mlock: _Loading = None
    numa: _Loading = None
    logits_all: _Loading = None
    vocab_only: _Loading = None
    embedding_only: _Loading = None

    def given(self) -> dict[str, object]:
        """Return the options by their names in OpenAI's API."""
        same = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop",
                "presence_penalty", "frequency_penalty")  # fmt: skip
        found = {name: getattr(self, name) for name in same}
        most = self.num_predict
        return {
            **found,
            "repetition_penalty": self.repeat_penalty,
            "max_tokens": most if most is not None and most > 0 else None,
        }


class CalledFunction(Struct, forbid_unknown_fields=True):
    """A call: the name of the tool, and its arguments."""

    name: ToolName
    arguments: dict[str, Any] = {}
    index: Any = None
    description: Any = None


class Called(Struct, forbid_unknown_fields=True):
    """A call of a tool in a message."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Struct, forbid_unknown_fields=True):
    """A message, with images in base64."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Called] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class Answering(RequestFields, kw_only=True):
    """The fields that `/api/chat` and `/api/generate` share."""

    model: _Name
    stream: Annotated[bool, Meta(description="False: return the answer as one object.")] = True
    format: Format | None = None
    think: Think | None = None
    options: Annotated[RuntimeOptions, Meta(description="See below.")] | None = None
    keep_alive: _Kept = None
    logprobs: (
        Annotated[bool, Meta(description="Return the log-probability of each token.")] | None
    ) = None
    top_logprobs: (
        Annotated[
            int, Meta(ge=0, le=20, description="Also return those of the N likeliest tokens.")
        ]
        | None
    ) = None

    def fields(self, name: str) -> dict[str, object]:
        """Return the options of the answer for the model with a name."""
        fields: dict[str, object] = {
            "model": name,
            "stream": self.stream,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs or None,
            **(self.options or RuntimeOptions()).given(),
        }
        if self.format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif isinstance(self.format, dict):
            named = {"name": "format", "schema": self.format}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        return fields

    def thinking(self) -> dict[str, object]:
        """Return what a conversation states about thoughts."""
        if self.think is None:
            return {}
        thinks = self.think is not False
        # Qwen's and SmolLM's templates read the first name, DeepSeek's and Granite's the second.
        variables: dict[str, object] = {"enable_thinking": thinks, "thinking": thinks}
        if isinstance(self.think, str):
            variables["reasoning_effort"] = self.think
        return {"chat_template_kwargs": variables}


class OllamaChatBody(Answering, kw_only=True):
    """`/api/chat`."""

    messages: Annotated[
        list[OllamaMessage], Meta(description="The conversation; empty: generate nothing.")
    ] = msgspec.field(default_factory=list[OllamaMessage])
    tools: (
        Annotated[
            Annotated[list[Tool], Meta(max_length=128)],
            Meta(description="Functions that the model may call."),
        ]
        | None
    ) = None

    def asked(self, name: str) -> ChatBody:
        """Return the requested chat."""
        turns = Turns()
        numbers = _Numbers()
        for message in self.messages:
            _add(turns, message, numbers)
        return chat_of(
            {
                **self.fields(name),
                **self.thinking(),
                "messages": turns.messages(),
                "tools": self.tools or None,
            }
        )


class GenerateBody(Answering, kw_only=True):
    """`/api/generate`."""

    refused: ClassVar[Mapping[str, str]] = {
        "width": "the server generates no images",
        "height": "the server generates no images",
        "steps": "the server generates no images",
    }
    prompt: Annotated[str, Meta(description="The prompt; empty: generate nothing.")] = ""
    suffix: (
        Annotated[
            str, Meta(description="The text after the answer, for fill-in-the-middle models.")
        ]
        | None
    ) = None
    system: Annotated[str, Meta(description="A system message before the prompt.")] | None = None
    images: Annotated[list[str], Meta(description="Images in base64.")] | None = None
    raw: Annotated[
        bool, Meta(description="Continue the prompt itself, without a chat template.")
    ] = False
    template: (
        Annotated[
            Literal[""], Meta(description="The model's template is always used.", extra=NOTHING)
        ]
        | None
    ) = None
    context: (
        Annotated[
            Annotated[list[int], Meta(max_length=0)],
            Meta(description="Use `/api/chat` for conversations.", extra=NOTHING),
        ]
        | None
    ) = None

    def asked(self, name: str) -> ChatBody:
        """Return the chat with an instruction and a message."""
        turns = Turns()
        if self.system:
            turns.say("system", [{"type": "text", "text": self.system}])
        turns.say("user", [{"type": "text", "text": self.prompt}, *_images(self.images)])
        return chat_of({**self.fields(name), **self.thinking(), "messages": turns.messages()})

    def completion(self, name: str) -> CompletionBody:
        """Return the completion for the text itself."""
        fields = {**self.fields(name), "prompt": self.prompt, "suffix": self.suffix or None}
        # Where a completion has one number, a chat has two fields.
        likeliest = fields.pop("top_logprobs")
        if likeliest is not None and not self.logprobs:
            raise RequestError("`top_logprobs` needs `logprobs`", param="top_logprobs")
        fields["logprobs"] = (likeliest or 0) if self.logprobs else None
        return converted(fields, CompletionBody)


class EmbedBody(RequestFields, kw_only=True):
    """`/api/embed`."""

    model: _Name
    input: Annotated[str | list[str], Meta(description="A text, or several; empty: none.")]
    truncate: Annotated[bool, Meta(description="False: refuse texts that exceed the context.")] = (
        True
    )
    dimensions: (
        Annotated[int, Meta(ge=1, description="Keep the first N elements of each vector.")] | None
    ) = None
    options: (
        Annotated[Any, Meta(description="Embeddings need no sampling options.", extra=NOTHING)]
        | None
    ) = None
    keep_alive: _Kept = None

    def asked(self, name: str) -> EmbeddingBody:
        """Return the requested embeddings."""
        fields = {"input": self.input, "truncate": self.truncate, "dimensions": self.dimensions}
        return converted({"model": name, **fields}, EmbeddingBody)


class OneEmbeddingBody(RequestFields, kw_only=True):
    """`/api/embeddings`, the older route."""

    model: _Name
    prompt: Annotated[str, Meta(description="A text; empty: none.")]
    options: (
        Annotated[Any, Meta(description="Embeddings need no sampling options.", extra=NOTHING)]
        | None
    ) = None
    keep_alive: _Kept = None

    def asked(self, name: str) -> EmbeddingBody:
        """Return the requested embedding."""
        fields = {"model": name, "input": self.prompt, "truncate": True}
        return converted(fields, EmbeddingBody)


class ShowBody(RequestFields, kw_only=True):
    """`/api/show`."""

    model: (
        Annotated[str, Meta(description="The name of the model, optionally with `:latest`.")] | None
    ) = None
    name: Annotated[str, Meta(description="Older name of `model`.")] | None = None
    verbose: (
        Annotated[bool, Meta(description="The answer is always complete.", extra=NOTHING)] | None
    ) = None


class _Numbers:
    """Ids of calls, which Ollama's messages lack: results come in the order of the calls."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[str] = []

    def called(self) -> str:
        """Return the id of the next call; nine characters, as some templates demand."""
        self._made += 1
        self._open.append(f"{self._made:09d}")
        return self._open[-1]

    def answered(self) -> str:
        """Return the id of the oldest call without a result."""
        return self._open.pop(0) if self._open else self.called()


def _add(turns: Turns, message: OllamaMessage, numbers: _Numbers) -> None:
    turns.begin()
    parts: list[dict[str, object]] = []
    if message.content:
        parts.append({"type": "text", "text": message.content})
    parts += _images(message.images)
    if message.role == "tool":
        number = message.tool_call_id or numbers.answered()
        turns.result(number, parts, message.tool_name or message.name)
        return
    if message.thinking:
        turns.think(message.thinking)
    if parts or not message.tool_calls:
        turns.say(message.role, parts)
    for call in message.tool_calls or ():
        number = call.id or numbers.called()
        turns.call(number, call.function.name, json.dumps(call.function.arguments))


def _images(images: Sequence[str] | None) -> list[dict[str, object]]:
    """Return images in base64 as parts; their first bytes tell the format."""
    # Ollama sends no type. The decoder reads the first bytes anyway, since stated types are often
    # wrong.
    urls = [f"data:image/any;base64,{data}" for data in images or ()]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]
