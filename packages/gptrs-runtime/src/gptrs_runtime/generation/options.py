"""The options of a generation: each field is all that is known of one option.

Checks, keywords, the options of `gptrs generate`, fields of requests, the settings read from
generation_config.json and the table in docs/generation.md follow from the fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from gptrs.errors import UsageError
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.option_fields import (
    FLAG,
    FUNCTIONS,
    PATH,
    SIZE,
    TEXTS,
    TOKENS,
    Kind,
    Missing,
    Option,
    OptionField,
    Options,
    from_to,
    having,
    option_fields,
)

if TYPE_CHECKING:
    from gptrs_runtime.generation.logits_processors import LogitsProcessor, ProcessorMaker
    from gptrs_runtime.loaded_model import LoadedModel
else:  # annotations must be readable without importing what runs models
    LogitsProcessor = ProcessorMaker = LoadedModel = Any

DEFAULT_MAX_TOKENS: Final = 128
PREFILL_CHUNK: Final = 256
MOST_PENALTY: Final = 100
"""The largest absolute length penalty, the exponent of a number of tokens."""

EarlyStopping = bool | Literal["never"]
"""When beam search ends; see `Beams`."""

_SAMPLING: Final[Kind] = ("a `Sampling`", lambda value: isinstance(value, Sampling))
_SPECIAL: Final[Kind] = (
    "True, False or a frozenset of tokens",
    lambda value: isinstance(value, frozenset) or FLAG[1](value),
)
_STOPPING: Final[Kind] = (
    "True, False or `never`",
    lambda value: value is True or value is False or value == "never",
)

_END: Final = "Where a text ends"
_SHOWN: Final = "What is shown"
_SHARED: Final = Missing("the texts of a server share one cache and its steps")
_Memory = partial(Option, panel="Context and cache", further=True, request=_SHARED)
_Beams = partial(Option, panel="Beams: the likeliest whole text", further=True, request=_SHARED)
_Guesses = partial(
    Option, panel="Guessing ahead: the same text, sooner", further=True, request=_SHARED
)


GUESSING: Final = frozenset({"prompt_lookup", "draft", "mtp"})
"""The options of speculative decoding."""


class GenerationOptions(Options, frozen=True):
    """All settings of a generation except the model and the prompt.

    `max_tokens` None follows generation_config.json, else is 128, limited to the context; an
    explicit number must fit. `sampling` None follows generation_config.json; `stop` adds to its
    stop strings, and `stop_tokens` to the tokens that end a text of the model, which `ignore_eos`
    leaves out; `keep_stop` shows the one of either that ends a text. `min_tokens` None follows it,
    too. `use_cache=False` recomputes the whole sequence for each token. `prefill_chunk` is how many
    tokens of prompts one step takes.

    `logprobs` requests the log-probability of each token and of that many likeliest ones. `special`
    shows special tokens in the text; a frozenset shows only those. `context` is how many tokens the
    model sees at most. With `context_shift` a context that would overflow keeps its first `keep`
    tokens and the last half of the others, and is read again.

    All generations of a model with the same settings share a key/value cache: `cache_dtype` (f32,
    bf16, f16, q8) and `cache_budget` (bytes, or a text: `2GB`); None uses the variables
    `GPTRS_CACHE_DTYPE` and `GPTRS_CACHE_BUDGET`, else f32 and half of the memory, but no more than
    8 whole contexts. `prompt_cache` names a file that keeps the pages of the prompt for prompts of
    other processes that begin like it.

    `logits_processors` run in this order after the built-in ones; see `LogitsProcessor`. Each is
    called for every token of every text. `form`, a `Grammar` for example, makes one for each text,
    which comes last.

    `prompt_lookup` guesses the next tokens where the text repeats itself, `draft` lets a smaller
    model with the same tokenizer, or a draft head made for the model, guess them, and `mtp` the
    model's own head for multi-token prediction. Accepted guesses save steps; tokens are the same as
    without guesses.

    With `beams` above 1 that many texts grow side by side, and the likeliest whole one is taken, as
    beam search of transformers does; `length_penalty` and `early_stopping` are its own, see
    `Beams`. None follows `num_beams` and related settings in generation_config.json, 1 ignores
    them.

    `steps_at_once` is how many greedy tokens may be chosen before one is visible, limited by the
    number of steps that the backend can run in one program. None uses the backend's limit, except
    for streams, which yield each token immediately.
    """

    max_tokens: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Stop after N new tokens; default: the model's own limit, else 128.",
            ),
            Option(
                metavar="N",
                panel=_END,
                variable="GPTRS_MAX_TOKENS",
                request="max_tokens",
                setting="max_new_tokens",
                also=("max_length", "n_predict"),
            ),
        ]
        | None
    ) = None
    sampling: (
        Annotated[
            Sampling,
            Meta(description="The fields of `Sampling`, all at once."),
            Option(
                kind=_SAMPLING,
                flag=Missing("its fields are separate options"),
                request=Missing("its fields are separate fields"),
                setting=Missing("its fields are separate settings"),
            ),
        ]
        | None
    ) = None
    stop: Annotated[
        Sequence[str],
        Meta(description="End before this text appears; repeatable."),
        Option(
            kind=TEXTS,
            metavar="TEXT",
            panel=_END,
            parsed=list[str],
            request="stop",
            setting="stop_strings",
        ),
    ] = ()
    keep_stop: Annotated[
        bool,
        Meta(description="Show the stop text, or stop token, that ends the text."),
        Option(
            flag=Missing("the text of `--stop` is known"),
            request="include_stop_str_in_output",
        ),
    ] = False
    ignore_eos: Annotated[
        bool,
        Meta(description="Continue past tokens that end the text."),
        Option(panel=_END, request="ignore_eos"),
    ] = False
    stop_tokens: Annotated[
        Sequence[int],
        Meta(description="More tokens that end the text."),
        Option(
            kind=TOKENS,
            flag=Missing("`--stop` takes the text of a token"),
            request="stop_token_ids",
            also=("stop_token_ids",),
        ),
    ] = ()
    min_tokens: (
        Annotated[
            int,
            Meta(ge=0, description="Generate at least N tokens before one may end the text."),
            Option(
                metavar="N",
                panel=_END,
                further=True,
                request="min_tokens",
                setting="min_new_tokens",
            ),
        ]
        | None
    ) = None
    use_cache: Annotated[
        bool,
        Meta(description="Recompute the whole text for each token: slow."),
        _Memory(
            flag="--no-cache",
        ),
    ] = True
    prefill_chunk: Annotated[
        int,
        Meta(ge=1, description="Read prompts N tokens at a time; fewer take less memory."),
        _Memory(
            called="the prefill chunk",
            metavar="N",
            unset=str(PREFILL_CHUNK),
        ),
    ] = PREFILL_CHUNK
    logprobs: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="With --json: log-probabilities, also of the N likeliest tokens.",
            ),
            Option(metavar="N", panel=_SHOWN, request="logprobs"),
        ]
        | None
    ) = None
    special: Annotated[
        bool | frozenset[str],
        Meta(description="Show special tokens, such as those that end a text."),
        Option(
            kind=_SPECIAL,
            panel=_SHOWN,
            parsed=bool,
            request=Missing("texts of a server have none"),
        ),
    ] = False
    context: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Limit the context to N tokens, prompt and text together.",
            ),
            _Memory(
                called="the context",
                metavar="N",
            ),
        ]
        | None
    ) = None
    context_shift: Annotated[
        bool,
        Meta(
            description="When the context is full, drop its first half and read the rest"
            " again; by default, texts that do not fit are refused.",
        ),
        _Memory(request=Missing("what does not fit is refused")),
    ] = False
    keep: Annotated[
        int,
        Meta(ge=0, description="With --context-shift: never forget the first N tokens."),
        _Memory(metavar="N", request=Missing("what does not fit is refused")),
    ] = 0
    cache_budget: (
        Annotated[
            int | str,
            Meta(
                description="Limit the memory of the key/value cache: 2GB, 512MiB, 25%;"
                " prompts that do not fit wait.",
            ),
            _Memory(
                kind=SIZE,
                metavar="SIZE",
                parsed=str,
                variable="GPTRS_CACHE_BUDGET",
                in_python=True,
                unset="50%, 8 contexts at most",
            ),
        ]
        | None
    ) = None
    cache_dtype: (
        Annotated[
            str,
            Meta(description="Keep keys and values as f32, bf16, f16, q8."),
            _Memory(
                metavar="DTYPE",
                variable="GPTRS_CACHE_DTYPE",
                in_python=True,
                unset="f32",
            ),
        ]
        | None
    ) = None
    prompt_cache: (
        Annotated[
            str | os.PathLike[str],
            Meta(
                description="Keep the key/value cache of the prompt in a file; prompts that begin"
                " alike reuse it.",
            ),
            _Memory(
                kind=PATH,
                metavar="FILE.safetensors",
                parsed=Path,
            ),
        ]
        | None
    ) = None
    logits_processors: Annotated[
        Sequence[LogitsProcessor],
        Meta(description="Change the logits of each token."),
        Option(
            kind=FUNCTIONS,
            flag=Missing("they are functions"),
            request=Missing("functions cannot be sent; use `logit_bias`"),
            setting=Missing("they are functions"),
        ),
    ] = ()
    form: (
        Annotated[
            ProcessorMaker,
            Meta(description="Restrict the text to a form."),
            Option(
                kind=having("new_processor", "a form such as `gptrs.Grammar`"),
                flag=Missing("`--json-schema`, `--grammar` and `--regex` make one"),
                request=Missing("`response_format`, `grammar` and `regex` make one"),
            ),
        ]
        | None
    ) = None
    prompt_lookup: Annotated[
        bool,
        Meta(
            description="Guess that the text continues as it did after an earlier occurrence of"
            " its last"
            " tokens.",
        ),
        _Guesses(also=("prompt_lookup_num_tokens",)),
    ] = False
    draft: (
        Annotated[
            LoadedModel,
            Meta(
                description="Let a smaller model with the same tokenizer, or a draft head (EAGLE),"
                " guess ahead."
            ),
            _Guesses(
                kind=having("causal_lm", "a model"),
                metavar="MODEL",
                parsed=Path,
                also=("assistant_model",),
            ),
        ]
        | None
    ) = None
    mtp: Annotated[
        bool,
        Meta(description="Guess ahead with the model's own head for multi-token prediction."),
        _Guesses(also=("use_mtp",)),
    ] = False
    beams: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Search with N beams, and take the likeliest whole text.",
            ),
            _Beams(
                called="the number of beams",
                metavar="N",
                setting="num_beams",
            ),
        ]
        | None
    ) = None
    length_penalty: (
        Annotated[
            float,
            Meta(
                description="Divide the score of a text by its length to the power of X: above 0,"
                " longer texts win.",
            ),
            _Beams(
                kind=from_to(-MOST_PENALTY, MOST_PENALTY),
                metavar="X",
                setting="length_penalty",
            ),
        ]
        | None
    ) = None
    early_stopping: (
        Annotated[
            EarlyStopping,
            Meta(description="End beam search once enough texts have ended."),
            Option(
                kind=_STOPPING,
                flag=Missing("files of models have it"),
                request=_SHARED,
                setting="early_stopping",
            ),
        ]
        | None
    ) = None
    steps_at_once: (
        Annotated[
            int,
            Meta(ge=1, description="Choose up to N tokens before returning one."),
            Option(
                called="the number of steps at once",
                flag=Missing("a text that is shown comes token by token"),
                request=Missing("1 for streams, else as many as the backend can"),
            ),
        ]
        | None
    ) = None

    def for_stream(self) -> GenerationOptions:
        """Return the options for streaming: one token per step."""
        return replace(self, steps_at_once=self.steps_at_once or 1)

    @property
    def guesses(self) -> bool:
        """Whether tokens are guessed ahead."""
        return self.prompt_lookup or self.mtp or self.draft is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not stop for stop in self.stop):
            raise UsageError("a stop string must not be empty")
        if self.keep and not self.context_shift:
            raise all_options()["keep"].error(
                "`keep` says what stays when the context shifts, which it does not",
                hint="add --context-shift",
            )
        if self.prompt_cache is not None and not self.use_cache:
            raise UsageError("a prompt cache needs a cache", hint="leave out --no-cache")
        if self.guesses and not self.use_cache:
            raise UsageError("guessing ahead needs a cache", hint="leave out --no-cache")
        if self.mtp and self.draft is not None:
            mtp, draft = all_options()["mtp"], all_options()["draft"]
            raise mtp.error("`mtp` and `draft` both guess every token", draft, hint="leave out one")


@cache
def all_options() -> Mapping[str, OptionField]:
    """Return the options of a generation by name, which are the keywords of the functions."""
    return {**option_fields(Sampling), **option_fields(GenerationOptions)}
