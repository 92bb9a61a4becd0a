"""The bodies of requests: every field that is read; any other is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from gptrs_runtime.generation.keywords import SamplingFields
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.option_fields import TEXTS, Missing, OptionField, Options, option_fields
from gptrs_runtime.verb_requests import ClassifyRequest, EmbedRequest, RankRequest, TagRequest
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.intervention_fields import Intervention
from gptrs_serve.problems import RequestError
from gptrs_serve.vllm_fields import KeepsStop, LastTokens, PromptScores

Base = TypeVar("Base", bound=RequestFields)
Count = Annotated[int, Meta(ge=1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Token = Annotated[int, Meta(ge=0)]
Temperature = Annotated[float, Meta(ge=0, le=2, description="Below 1: more certain; 0: greedy.")]
TopP = Annotated[
    float, Meta(ge=0, le=1, description="Sample among the likeliest tokens of total probability P.")
]
MinP = Annotated[
    float,
    Meta(ge=0, le=1, description="Drop tokens below P times the probability of the likeliest."),
]
Tokens = list[Token]
Stop = Annotated[str, Meta(max_length=1024)]
"""A text that ends an answer. While an answer may be its beginning, each step compares all of it:
with 16 texts of 240,000 characters for milliseconds, in the engine's thread."""
Stops = Annotated[list[Stop], Meta(max_length=16)]
BadWord = Annotated[str, Meta(min_length=1, max_length=200)]
_MOST_TOKENS: Final = 131_072
"""A million tokens would take the interpreter from everybody else for two seconds."""
_MOST_REGEX, _MOST_GRAMMAR = 8_192, 32_768
"""Most characters of a form: llguidance's time grows with their square, 0.2 s for such a regex."""
MOST_TEXTS: Final = 2048
"""Most texts of a request."""
_MOST_TEXTS: Final = Meta(min_length=1, max_length=MOST_TEXTS)
Texts = str | Annotated[list[str], _MOST_TEXTS]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Further contents of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: Literal[False] = False


class TextFormat(Struct, tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObject(Struct, tag="json_object", forbid_unknown_fields=True):
    """Any JSON object, or one that matches a `schema`, as in llama.cpp."""

    schema: dict[str, Any] | None = None


class NamedSchema(Struct, forbid_unknown_fields=True):
    """A JSON schema, which answers match, with or without `strict`."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchema(Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    json_schema: NamedSchema


def _with_fields_of(options: Mapping[str, OptionField], base: type[Base]) -> type[Base]:
    """Return a body with a field for each option that requests have under the same name.

    Those of a generation have no defaults: the files of the model may state them.
    """
    told: list[Any] = []
    for name, field in options.items():
        bounds = field.option.request
        if isinstance(bounds, Meta):
            about = Meta(description=bounds.description or field.meta.description)
            kind: Any = Annotated[field.type, bounds, about]
            default = None if base is RequestFields else field.default
            kind = kind | None if default is None and not field.required else kind
            told.append((name, kind) if field.required else (name, kind, default))
    made = msgspec.defstruct(
        "Options", told, bases=(base,), forbid_unknown_fields=True, kw_only=True
    )
    return cast("type[Base]", made)


Model = Annotated[str, Meta(description="The name of the model; default: the first.")]
Advice = Annotated[Any, Meta(description="Metadata of the client.", extra=NOTHING)]
Tier = Annotated[str, Meta(description="There is only one tier.", extra=NOTHING)]
Effort = Annotated[
    str,
    Meta(
        description="Passed to the chat template. If the template ignores it, `none` and `medium`,"
        " the default of the API, have no effect, and other values are refused."
    ),
]
_Spaced = Annotated[bool, Meta(description="The text has no spaces of its own.", extra=NOTHING)]


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """One form of an answer, in vLLM's notation."""

    json: dict[str, Any] | str | None = None
    regex: Annotated[str, Meta(max_length=_MOST_REGEX)] | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: Annotated[str, Meta(max_length=_MOST_GRAMMAR)] | None = None
    json_object: bool | None = None


class LoadBody(RequestFields, kw_only=True):
    """`/models/load`."""

    model: Annotated[
        str, Meta(min_length=1, description="[NAME=]MODEL, or the name of an unloaded model.")
    ]


class UnloadBody(RequestFields, kw_only=True):
    """`/models/unload`."""

    model: Annotated[str, Meta(description="The name of a model or an adapter.")]


class LoadAdapterBody(RequestFields, kw_only=True):
    """`/v1/load_lora_adapter`."""

    lora_name: Annotated[str, Meta(min_length=1, description="The name that requests use.")]
    lora_path: Annotated[str, Meta(min_length=1, description="The folder of the adapter.")]
    base_model_name: (
        Annotated[str, Meta(description="The base model; default: the first.")] | None
    ) = None
    load_inplace: (
        Annotated[
            Literal[False], Meta(description="Adapters are never replaced in place.", extra=NOTHING)
        ]
        | None
    ) = None


class UnloadAdapterBody(RequestFields, kw_only=True):
    """`/v1/unload_lora_adapter`."""

    lora_name: Annotated[str, Meta(description="The name of the adapter.")]
    lora_int_id: Annotated[Any, Meta(description="The name is enough.", extra=NOTHING)] | None = (
        None
    )


class Generating(
    _with_fields_of(all_options(), RequestFields), forbid_unknown_fields=True, kw_only=True
):
    """The fields that chat and plain completions share.

    What chooses the tokens, such as `temperature`, follows from the options of a generation.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "logits_processors": "functions cannot be sent; use `logit_bias`",
        "cache_salt": "all prompts share one cache",
        "kv_transfer_params": "caches are not moved between servers",
        "length_penalty": "beam search is not available over HTTP",
        "mirostat": "`top_p` and `min_p` cut the distribution",
    }
    model: Model | None = None
    n: Annotated[int, Meta(ge=1, le=128, description="Number of answers.")] = 1
    stream: Annotated[bool, Meta(description="Stream the answer.")] = False
    stream_options: (
        Annotated[
            StreamOptions, Meta(description="`include_usage`: count tokens in the last event.")
        ]
        | None
    ) = None
    stop: (
        Annotated[
            Stop | Stops,
            Meta(description="End the answer before these texts; empty ones are ignored."),
        ]
        | None
    ) = None
    stop_token_ids: (
        Annotated[
            Annotated[Tokens, Meta(max_length=64)],
            Meta(description="More tokens that end the answer."),
        ]
        | None
    ) = None
    min_tokens: (
        Annotated[int, Meta(ge=0, description="Fewest tokens before a token may end the answer.")]
        | None
    ) = None
    logit_bias: (
        Annotated[
            dict[str, Bias], Meta(description="Add to the logits of tokens; -100 bans a token.")
        ]
        | None
    ) = None
    allowed_token_ids: (
        Annotated[
            Annotated[Tokens, Meta(min_length=1, max_length=_MOST_TOKENS)],
            Meta(description="Write these tokens only; include one that ends the answer."),
        ]
        | None
    ) = None
    bad_words: (
        Annotated[
            Annotated[list[BadWord], Meta(max_length=64)],
            Meta(
                description="Never write these texts by the tokens that they have alone or after a"
                " space."
            ),
        ]
        | None
    ) = None
    ignore_eos: Annotated[bool, Meta(description="Continue past end-of-text tokens.")] = False
    priority: Annotated[
        int, Meta(ge=-100, le=100, description="Start requests of higher priority first.")
    ] = 0
    max_time: Annotated[float, Meta(gt=0, description="Fail after this many seconds.")] | None = (
        None
    )
    response_format: (
        Annotated[
            TextFormat | JsonObject | JsonSchema,
            Meta(description="The form of the answer: `text`, `json_object` or `json_schema`."),
        ]
        | None
    ) = None
    return_token_ids: (
        Annotated[bool, Meta(description="Also return the tokens of prompts and answers.")] | None
    ) = None
    regex: (
        Annotated[
            str,
            Meta(
                max_length=_MOST_REGEX, description="A regular expression that the answer matches."
            ),
        ]
        | None
    ) = None
    grammar: (
        Annotated[
            str,
            Meta(max_length=_MOST_GRAMMAR, description="The grammar of the answer: Lark or GBNF."),
        ]
        | None
    ) = None
    structured_outputs: (
        Annotated[
            StructuredOutputs,
            Meta(description="`json`, `regex`, `choice`, `grammar` or `json_object`, as in vLLM."),
        ]
        | None
    ) = None
    guided_json: (
        Annotated[dict[str, Any] | str, Meta(description="Older form of `response_format`.")] | None
    ) = None
    guided_regex: (
        Annotated[str, Meta(max_length=_MOST_REGEX, description="Like `regex`.")] | None
    ) = None
    guided_choice: (
        Annotated[
            Annotated[list[str], Meta(min_length=1)],
            Meta(description="Answer with one of these texts."),
        ]
        | None
    ) = None
    guided_grammar: (
        Annotated[str, Meta(max_length=_MOST_GRAMMAR, description="Like `grammar`.")] | None
    ) = None
    interventions: (
        Annotated[
            Intervention,
            Meta(
                description="Read and steer hidden states, with `--interventions`: the fields of"
                " `/v1/interventions`."
            ),
        ]
        | None
    ) = None
    guided_decoding_backend: (
        Annotated[str, Meta(description="The backend is always llguidance.", extra=NOTHING)] | None
    ) = None
    user: Advice = None
    request_id: Advice = None
    service_tier: Tier | None = None
    cache_prompt: (
        Annotated[bool, Meta(description="All prompts are cached anyway.", extra=NOTHING)] | None
    ) = None
    skip_special_tokens: (
        Annotated[
            bool, Meta(description="False: show special tokens, except the one that ends the text.")
        ]
        | None
    ) = None
    spaces_between_special_tokens: _Spaced | None = None
    include_stop_str_in_output: KeepsStop | None = None
    use_beam_search: (
        Annotated[
            Literal[False],
            Meta(description="Beam search is not available over HTTP.", extra=NOTHING),
        ]
        | None
    ) = None
    return_tokens_as_token_ids: (
        Annotated[
            bool, Meta(description="Name tokens of log-probabilities `token_id:` and number.")
        ]
        | None
    ) = None

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

    prompt: Annotated[
        str | Annotated[list[Token | str | Tokens], Meta(min_length=1)],
        Meta(description="A text, tokens, or a list of either."),
    ]
    suffix: (
        Annotated[
            str,
            Meta(
                description="The text after the answer, for fill-in-the-middle models; with one"
                " prompt."
            ),
        ]
        | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=0, description="Most tokens; 0 only with `echo`.")] = 16
    logprobs: (
        Annotated[
            int,
            Meta(
                ge=0, le=20, description="Return log-probabilities, also of the N likeliest tokens."
            ),
        ]
        | None
    ) = None
    echo: Annotated[bool, Meta(description="Repeat the prompt before the answer.")] = False
    prompt_logprobs: PromptScores | None = None
    truncate_prompt_tokens: LastTokens | None = None
    best_of: Annotated[int, Meta(description="Must equal `n`.", extra=NOTHING)] | None = None


ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Struct, forbid_unknown_fields=True):
    """A function that a model may call; `parameters` is a JSON schema of an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, tag="function", forbid_unknown_fields=True):
    """A tool, always a function."""

    function: Function
    cache_control: (
        Annotated[Any, Meta(description="All prompts are cached anyway.", extra=NOTHING)] | None
    ) = None


class ToolReference(Struct, forbid_unknown_fields=True):
    """The name of a function among the tools."""

    name: str


class NamedTool(Struct, tag="function", forbid_unknown_fields=True):
    """The tool to call."""

    function: ToolReference


class AllowedTools(Struct, forbid_unknown_fields=True):
    """The tools that may be called, among those that the model knows."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=128)]


class AllowedChoice(Struct, tag="allowed_tools", forbid_unknown_fields=True):
    """A choice of several tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice

Message = Annotated[
    dict[str, Any],
    Meta(extra_json_schema={"properties": {"role": {"type": "string"}}, "required": ["role"]}),
]


Tools = Annotated[
    Annotated[list[Tool], Meta(max_length=128)],
    Meta(description="Functions that the model may call."),
]
Choice = Annotated[
    ToolChoice, Meta(description="`auto`, `none`, `required`, a function, or `allowed_tools`.")
]
Variables = Annotated[dict[str, Any], Meta(description="Variables for the chat template.")]
Thinking = Annotated[bool, Meta(description="Sets the template variable of this name.")]
Beginning = Annotated[
    bool, Meta(description="False: do not open an answer after the last message.")
]
GoingOn = Annotated[bool, Meta(description="Continue the last message.")]


class ChatBody(Generating, kw_only=True):
    """`/v1/chat/completions`. Messages are read by the template of the model."""

    refused: ClassVar[Mapping[str, str]] = {
        **Generating.refused,
        "prompt_logprobs": "`/v1/completions` scores a prompt",
        "truncate_prompt_tokens": "what a template writes cannot be cut; leave out messages",
        "audio": "answers are always text",
        "web_search_options": "the server contacts no other servers",
        "moderation": "the server contacts no other servers",
        "chat_template": "a template is a program; requests cannot bring one",
    }
    messages: Annotated[
        Annotated[list[Message], Meta(min_length=1)],
        Meta(description="The messages of the conversation."),
    ]
    tools: Tools | None = None
    tool_choice: Choice | None = None
    chat_template_kwargs: Variables | None = None
    enable_thinking: Thinking | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: Beginning | None = None
    continue_final_message: GoingOn | None = None
    max_tokens: Annotated[int, Meta(ge=1, description="Most tokens per answer.")] | None = None
    max_completion_tokens: (
        Annotated[int, Meta(ge=1, description="The same as `max_tokens`.")] | None
    ) = None
    logprobs: (
        Annotated[bool, Meta(description="Return the log-probability of each token.")] | None
    ) = None
    top_logprobs: (
        Annotated[
            int, Meta(ge=0, le=20, description="Also return those of the N likeliest tokens.")
        ]
        | None
    ) = None
    parallel_tool_calls: (
        Annotated[bool, Meta(description="False: call at most one tool.")] | None
    ) = None
    include_reasoning: (
        Annotated[bool, Meta(description="False: leave thoughts out of the answer.")] | None
    ) = None
    store: Annotated[bool, Meta(description="Chats are never stored.", extra=NOTHING)] | None = None
    metadata: Advice = None
    safety_identifier: Advice = None
    prompt_cache_key: Advice = None
    prompt_cache_retention: Advice = None
    prompt_cache_options: Advice = None
    prediction: Annotated[Any, Meta(description="A performance hint.", extra=NOTHING)] | None = None
    modalities: (
        Annotated[
            list[Literal["text"]], Meta(description="Answers are always text.", extra=NOTHING)
        ]
        | None
    ) = None
    verbosity: (
        Annotated[
            Literal["medium"],
            Meta(description="Ask for short answers in the prompt.", extra=NOTHING),
        ]
        | None
    ) = None
    functions: (
        Annotated[
            Annotated[list[Any], Meta(max_length=0)],
            Meta(description="Use `tools`.", extra=NOTHING),
        ]
        | None
    ) = None
    function_call: (
        Annotated[Literal["none", "auto"], Meta(description="Use `tool_choice`.", extra=NOTHING)]
        | None
    ) = None
    echo: (
        Annotated[
            Literal[False], Meta(description="An answer never repeats the prompt.", extra=NOTHING)
        ]
        | None
    ) = None
    add_special_tokens: (
        Annotated[Literal[False], Meta(description="The chat template adds them.", extra=NOTHING)]
        | None
    ) = None


class TaskFields(RequestFields, kw_only=True):
    """The request of a task: the fields that the table of tasks has, under the protocol's names."""

    model: Model | None = None

    def asked(self, request: type[Options]) -> dict[str, Any]:
        """Return the given fields of `request` by their names in the runtime."""
        given: dict[str, Any] = {}
        for name, field in option_fields(request).items():
            told = field.option.request
            if isinstance(told, Missing):
                continue
            value = getattr(self, name if isinstance(told, Meta) else told)
            if field.kind is TEXTS:
                value = [value] if isinstance(value, str) else value
                value = [getattr(each, "text", each) for each in value]
            if value is not None:
                given[name] = value
        return given


class Reading(TaskFields, kw_only=True):
    """Texts that are longer than the model reads are refused unless they may be cut.

    `truncate` is the word of TEI; vLLM has `truncate_prompt_tokens`, -1 for the limit of the model.
    """

    truncate_prompt_tokens: (
        Annotated[Literal[-1], Meta(description="vLLM's name for `truncate`.")] | None
    ) = None
    priority: Annotated[int, Meta(description="Requests run in turn.", extra=NOTHING)] | None = None

    def asked(self, request: type[Options]) -> dict[str, Any]:
        """Return the same; `truncate` states whether texts may be cut."""
        return {**super().asked(request), "truncate": self.may_cut}

    @property
    def may_cut(self) -> bool:
        """Whether texts may be cut."""
        told: bool | None = getattr(self, "truncate", None)
        return self.truncate_prompt_tokens is not None if told is None else told


class TextInput(Struct, forbid_unknown_fields=True):
    """A text as an object."""

    text: str
    type: Literal["text"] | None = None


class ImageInput(Struct, forbid_unknown_fields=True):
    """An image as a URL `data:image/...;base64,...`."""

    image: str
    type: Literal["image"] | None = None


class EmbeddingBody(_with_fields_of(option_fields(EmbedRequest), Reading), kw_only=True):
    """`/v1/embeddings`."""

    input: Annotated[
        str | Annotated[list[Token | str | Tokens | dict[str, str]], _MOST_TEXTS],
        Meta(
            description="A text, its tokens, or a list of texts or of tokens; in a list also"
            ' `{"text": ...}`, and `{"image": "data:..."}` for models that embed images.'
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"],
        Meta(description="`float` for numbers, `base64` for their f32 bytes."),
    ] = "float"
    user: Advice = None

    def inputs(self) -> list[str | Tokens | ImageInput]:
        """Return each text, as text or as its tokens, and each image; RequestError for others."""
        if isinstance(self.input, str):
            return [self.input]
        if all(isinstance(each, int) for each in self.input):
            return [cast("Tokens", self.input)]
        found: list[str | Tokens | ImageInput] = []
        for number, each in enumerate(self.input):
            if isinstance(each, dict):
                kind = ImageInput if "image" in each else TextInput
                one = converted(each, kind, f"input[{number}]")
                found.append(one.text if isinstance(one, TextInput) else one)
            elif isinstance(each, int):
                raise RequestError("`input` mixes tokens and texts", param="input")
            else:
                found.append(each)
        return found


class RerankBody(_with_fields_of(option_fields(RankRequest), Reading), kw_only=True):
    """`/v1/rerank` and `/v2/rerank`, as in Jina and Cohere."""

    refused: ClassVar[Mapping[str, str]] = {
        "max_tokens_per_doc": "`truncate` cuts to the limit of the model",
        "rank_fields": "documents are plain texts",
        "texts": "`documents` has the texts, as in Jina's and Cohere's APIs",
    }
    documents: Annotated[
        Annotated[list[str | TextInput], _MOST_TEXTS], Meta(description="The documents.")
    ]
    top_n: Annotated[int, Meta(ge=1, description="Return only the N best.")] | None = None
    return_documents: Annotated[bool, Meta(description="Return the texts as well.")] = False


class ScoreBody(_with_fields_of({"truncate": option_fields(RankRequest)["truncate"]}, Reading)):
    """`/v1/score`: how well texts match, as in vLLM."""

    text_1: Annotated[Texts, Meta(description="One text, or as many as `text_2`.")]
    text_2: Annotated[Texts, Meta(description="The texts to compare with `text_1`.")]
    user: Advice = None


class ClassifyBody(_with_fields_of(option_fields(ClassifyRequest), Reading), kw_only=True):
    """`/v1/classify`, as in vLLM."""

    input: Annotated[Texts, Meta(description="A text, or several.")]
    user: Advice = None


class TagBody(_with_fields_of(option_fields(TagRequest), TaskFields), kw_only=True):
    """`/v1/tag`: the parts of texts found by a classifier of tokens."""

    input: Annotated[Texts, Meta(description="A text, or several.")]


TASKS: Final[Mapping[str, type[TaskFields]]] = {
    "embed": EmbeddingBody,
    "rank": RerankBody,
    "classify": ClassifyBody,
    "tag": TagBody,
}
"""The bodies of tasks by the names of the tasks."""


class Conversing(RequestFields, kw_only=True):
    """The fields that a template reads besides messages."""

    model: Model | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    chat_template_kwargs: Variables | None = None
    enable_thinking: Thinking | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: Beginning | None = None
    continue_final_message: GoingOn | None = None


class TokenizeBody(Conversing, kw_only=True):
    """`/tokenize`: a text, or messages as the template of the model renders them."""

    # Four megabytes would be a million tokens: a minute of a thread, and 600 MB.
    prompt: Annotated[str, Meta(max_length=500_000, description="A text.")] | None = None
    content: (
        Annotated[
            str,
            Meta(
                max_length=500_000,
                description="The same as in llama.cpp, which adds no special tokens by default.",
            ),
        ]
        | None
    ) = None
    messages: Annotated[list[Message], Meta(description="Or a conversation.")] | None = None
    add_special_tokens: (
        Annotated[bool, Meta(description="False: add no special tokens to the text.")] | None
    ) = None
    add_special: (
        Annotated[bool, Meta(description="True: add special tokens to `content`.")] | None
    ) = None


class TemplateBody(Conversing, kw_only=True):
    """`/apply-template`: the text of messages."""

    messages: Annotated[
        Annotated[list[Message], Meta(min_length=1)], Meta(description="The conversation.")
    ]


class DetokenizeBody(RequestFields, kw_only=True):
    """`/detokenize`."""

    tokens: Annotated[Tokens, Meta(max_length=_MOST_TOKENS, description="The tokens.")]
    model: Model | None = None
