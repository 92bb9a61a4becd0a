"""How texts about sources begin and end: settings of encoder-decoder models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from gptrs.checkpoint.config_fields import is_integer
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs.quoting import shown_value
from gptrs_runtime.generation.logits_processors import LogitsProcessor
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.loaded_model import LoadedModel

FORCED = ("forced_bos_token_id", "forced_eos_token_id")
"""Settings that are followed where a text has a source."""


class SourceSettings:
    """The first tokens of texts, and those that the settings of the model force.

    ModelError for a model that does not say with which token texts begin, and malformed settings;
    UsageError for options that make no sense here.
    """

    def __init__(self, model: LoadedModel, options: GenerationOptions) -> None:
        self.source_length = model.seq2seq().source_length
        settings = model.generation_config
        self._first = _token(settings, model.config, FORCED[0])
        self._last = _token(settings, model.config, FORCED[1])
        self.begin = [first_token(model)]
        given = {
            "context_shift": options.context_shift,
            "prompt_cache": options.prompt_cache is not None,
            "use_cache=False": not options.use_cache,
            "prompt_lookup": options.prompt_lookup,
            "draft": options.draft is not None,
        }
        for name, asked in given.items():
            if asked:
                raise UsageError(
                    f"`{name}` is for models that continue a prompt, `{model.name}` reads a text"
                    " and writes another one",
                    hint="leave it out",
                )

    def require_source(self, length: int) -> None:
        """ContextLengthError for a source of too many tokens."""
        if length > self.source_length:
            raise ContextLengthError(
                f"{length} tokens do not fit into the {self.source_length} that the encoder takes",
                hint="shorten the text",
            )

    def processors(self, count: int) -> list[LogitsProcessor]:
        """Return what forces the first and the last of `count` new tokens."""
        begin = len(self.begin)
        forced = {begin: self._first, begin + count - 1: self._last}
        return [ForcedToken(at, token) for at, token in forced.items() if token is not None]


class ForcedToken:
    """Lets only one token follow the first `length` ones."""

    def __init__(self, length: int, token: int) -> None:
        self._length = length
        self._token = token

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of all other tokens to -inf, if it is its turn."""
        if tokens.size == self._length:
            logits[:] = -np.inf
            logits[self._token] = 0
        return logits


def first_token(model: LoadedModel) -> int:
    """Return the token that each text about a source begins with; ModelError if none is named."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        found = _token(model.generation_config, model.config, name)
        if found is not None:
            return found
    raise ModelError(
        f"`{model.name}` does not say with which token the texts that it writes begin",
        hint="add `decoder_start_token_id` to generation_config.json",
    )


def _token(settings: Mapping[str, object], config: Mapping[str, object], name: str) -> int | None:
    value = settings.get(name)
    value = config.get(name) if value is None else value
    if isinstance(value, list):
        several = cast("list[object]", value)
        value = several[0] if len(several) == 1 else several
    if value is not None and (not is_integer(value) or value < 0):
        raise ModelError(f"`{name}` must be a token, got {shown_value(value)}")
    return value
