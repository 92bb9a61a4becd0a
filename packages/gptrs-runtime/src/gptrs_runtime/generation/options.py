"""The options of a generation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.generation.logits_processors import LogitsProcessor, ProcessorMaker
from gptrs_runtime.generation.option_types import (
    FLAG,
    FUNCTIONS,
    INTEGER,
    PATH,
    SIZE,
    TEXT,
    TEXTS,
    Kind,
    having,
    is_number,
    require_types,
)
from gptrs_runtime.generation.sampling import Sampling

if TYPE_CHECKING:
    from gptrs_runtime.loaded_model import LoadedModel

DEFAULT_MAX_TOKENS: Final = 128
PREFILL_CHUNK: Final = 256
MOST_PENALTY: Final = 100
"""The largest exponent of a number of tokens, above and below 0."""

EarlyStopping = bool | Literal["never"]
"""When beam search ends; see `Beams`."""


@dataclass(frozen=True)
class GenerationOptions:
    """Everything that shapes a generation besides the model and the prompt.

    `max_tokens` None takes what generation_config.json says, else 128, and no more than the context
    holds; a number that is given must fit. `sampling` None takes that of generation_config.json;
    `stop` adds to its stop strings. `use_cache=False` recomputes the whole sequence for each token.
    `prefill_chunk` is how many tokens of prompts one step takes.

    `logprobs` asks for the log-probability of each token and of that many likeliest ones. `special`
    shows special tokens in the text, a frozenset of them shows these. `context` is how many tokens
    the model sees at most. With `context_shift` a context that would overflow keeps its first
    `keep` tokens and the last half of the others, and is read anew.

    All generations of a model share a key/value cache while they ask for the same `cache_dtype`
    (f32, bf16, f16, q8) and `cache_budget` (bytes, or a text: `2GB`); None takes the variables
    `GPTRS_CACHE_DTYPE` and `GPTRS_CACHE_BUDGET`, else f32 and half of the memory, but no more than
    8 whole contexts. `prompt_cache` names a file that keeps the pages of the prompt for prompts of
    other processes that begin like it.

    `logits_processors` run in this order after the built-in ones; see `LogitsProcessor`. Each is
    called for every token of every text. `form`, a `Grammar` for example, makes one for each text,
    which comes last.

    `prompt_lookup` guesses tokens ahead where the text repeats what it had before, `draft` has a
    smaller model of the same tokenizer guess them. What comes true saves steps; each token is
    chosen as it is without guesses.

    With `beams` above 1 that many texts grow side by side, and the likeliest whole one is taken, as
    beam search of transformers does; `length_penalty` and `early_stopping` are its own, see
    `Beams`. None follows `num_beams` and its like in generation_config.json, 1 does not.

    `steps_at_once` is how many tokens may be chosen before anybody sees one, where the backend can
    run as many steps in one program and takes the likeliest tokens; it takes the smaller number of
    its own. None leaves it to the backend, but for streams: each of their tokens comes at once.
    """

    max_tokens: int | None = None
    sampling: Sampling | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    use_cache: bool = True
    prefill_chunk: int = PREFILL_CHUNK
    logprobs: int | None = None
    special: bool | frozenset[str] = False
    context: int | None = None
    context_shift: bool = False
    keep: int = 0
    cache_budget: int | str | None = None
    cache_dtype: str | None = None
    prompt_cache: str | os.PathLike[str] | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    form: ProcessorMaker | None = None
    prompt_lookup: bool = False
    draft: LoadedModel | None = None
    beams: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    steps_at_once: int | None = None

    def for_stream(self) -> GenerationOptions:
        """Return the options of a text whose tokens are read as they come: one in each step."""
        return dataclasses.replace(self, steps_at_once=self.steps_at_once or 1)

    def __post_init__(self) -> None:
        require_types(self, _KINDS)
        if any(not stop for stop in self.stop):
            raise UsageError("a stop string must not be empty")
        _require("max-tokens", self.max_tokens, 1)
        _require("the prefill chunk", self.prefill_chunk, 1)
        _require("logprobs", self.logprobs, 0)
        _require("the context", self.context, 1)
        _require("keep", self.keep, 0)
        _require("the number of beams", self.beams, 1)
        _require("the number of steps at once", self.steps_at_once, 1)
        if self.keep and not self.context_shift:
            raise UsageError(
                "`keep` says what stays when the context shifts, which it does not",
                hint="add --context-shift",
            )
        if self.prompt_cache is not None and not self.use_cache:
            raise UsageError("a prompt cache needs a cache", hint="leave out --no-cache")
        if (self.prompt_lookup or self.draft is not None) and not self.use_cache:
            raise UsageError("guessing ahead needs a cache", hint="leave out --no-cache")


_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("max_tokens", "prefill_chunk", "logprobs", "context", "keep"), INTEGER),
    **dict.fromkeys(("beams", "steps_at_once"), INTEGER),
    **dict.fromkeys(("ignore_eos", "use_cache", "context_shift"), FLAG),
    "prompt_lookup": FLAG,
    "special": (
        "True, False or a frozenset of tokens",
        lambda value: isinstance(value, frozenset) or FLAG[1](value),
    ),
    "stop": TEXTS,
    "cache_budget": SIZE,
    "cache_dtype": TEXT,
    "prompt_cache": PATH,
    "logits_processors": FUNCTIONS,
    "form": having("new_processor", "a form such as `gptrs.Grammar`"),
    "draft": having("causal_lm", "a model"),
    "sampling": ("a `Sampling`", lambda value: isinstance(value, Sampling)),
    "length_penalty": (
        f"a number from -{MOST_PENALTY} to {MOST_PENALTY}",
        lambda value: is_number(value) and abs(value) <= MOST_PENALTY,
    ),
    "early_stopping": ("True, False or `never`", lambda v: v is True or v is False or v == "never"),
}


def _require(what: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise UsageError(f"{what} must be at least {minimum}, got {value}")
