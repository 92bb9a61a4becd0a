"""What a model and the options decide for every text: checked once, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gptrs.errors import ContextLengthError, UsageError
from gptrs.plugins.capabilities import CausalLM
from gptrs.runtime.generation.context import Context, ContextLimit
from gptrs.runtime.generation.model_settings import (
    configured_max_tokens,
    configured_restrictions,
    configured_sampling,
    configured_stops,
    note_unsupported,
)
from gptrs.runtime.generation.options import DEFAULT_MAX_TOKENS, GenerationOptions
from gptrs.runtime.generation.penalties import Penalties
from gptrs.runtime.generation.sampling import Sampler
from gptrs.runtime.generation.steps import Steps
from gptrs.runtime.generation.text_row import TextRow
from gptrs.runtime.load import LoadedModel, require_known_tokens

Prompt = str | Sequence[int]
"""Text, or tokens."""


class Plan:
    """How `model` generates under `options`.

    UsageError for options that do not suit the model, ModelError for a model that cannot generate
    and for malformed settings of its generation_config.json.
    """

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        self.lm: CausalLM = model.causal_lm()
        self.options = options
        self._model = model
        self._settings = model.generation_config
        note_unsupported(model.name, self._settings)
        self._limit = _context_limit(self.lm.context_length, options)
        self._sampling = options.sampling or configured_sampling(self._settings)
        self._restrictions = configured_restrictions(self._settings)
        self._ends = frozenset[int]() if options.ignore_eos else model.eos_tokens
        self._stops = self._all_stops()

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The tokens to begin with; UsageError for an empty prompt and unknown tokens."""
        is_text = isinstance(prompt, str)
        tokens = self._model.tokenizer.encode(prompt) if is_text else list(prompt)
        if not tokens and self._model.bos_token is not None:
            tokens = [self._model.bos_token]
        if not tokens:
            raise UsageError("the prompt is empty and the model has no token to begin with")
        require_known_tokens(tokens, self.lm.vocab_size)
        return tokens

    def row(self, prompt: Sequence[int], max_tokens: int | None = None, stream: int = 0) -> TextRow:
        """A text that begins with `prompt`; `max_tokens` None takes that of the options.

        ContextLengthError when it does not fit. `stream` is that of the `Sampler`.
        """
        return TextRow(
            prompt=prompt,
            context=Context(prompt, self._limit),
            max_tokens=self.token_budget(len(prompt), max_tokens),
            ends=self._ends,
            shows_end=self.options.special,
            sampler=Sampler(self._sampling, stream),
            penalties=Penalties(self._sampling, self._restrictions, self._ends, prompt),
            decode=self._decode(),
            stops=self._stops,
            scored=self.options.logprobs,
            load_seconds=self._model.load_seconds,
        )

    def token_budget(self, prompt: int, max_tokens: int | None) -> int:
        """How many tokens may follow that many; ContextLengthError if they do not fit.

        `max_tokens` None takes that of the options.
        """
        asked = self.options.max_tokens if max_tokens is None else max_tokens
        room = self._limit.size - prompt
        if not self._limit.shift and (room < 1 or (asked is not None and asked > room)):
            more = f" and {asked} new ones" if asked is not None else ""
            raise ContextLengthError(
                f"{prompt} prompt tokens{more} do not fit into the context of"
                f" {self._limit.size} tokens",
                hint="shorten the prompt, lower --max-tokens, or add --context-shift",
            )
        if asked is not None:
            return asked
        default = configured_max_tokens(self._settings, prompt) or DEFAULT_MAX_TOKENS
        return default if self._limit.shift else min(room, default)

    def steps(self, contexts: Sequence[Context]) -> Steps:
        """What runs the model on these contexts."""
        return Steps(
            self.lm,
            contexts,
            size=self._limit.size,
            chunk=self.options.prefill_chunk,
            fixed=self.options.context is not None,
            use_cache=self.options.use_cache,
        )

    def _all_stops(self) -> tuple[str, ...]:
        if self._model.has_tokenizer:
            return (*self.options.stop, *configured_stops(self._settings))
        if self.options.stop:
            raise UsageError("stop strings need a model with a tokenizer")
        return ()

    def _decode(self) -> partial[str] | _NoText:
        if not self._model.has_tokenizer:
            return _NoText()
        return partial(self._model.tokenizer.decode, special=self.options.special)


class _NoText:
    """Decodes for a model without a tokenizer."""

    def __call__(self, tokens: Sequence[int]) -> str:
        return ""


def _context_limit(most: int, options: GenerationOptions) -> ContextLimit:
    asked = options.context
    if asked is not None and asked > most:
        raise ContextLengthError(
            f"the model has a context of {most} tokens, asked for {asked}",
            hint="lower --context",
        )
    return ContextLimit(asked or most, options.context_shift, options.keep)
