"""When a window of speech is decoded again at another temperature, and when it counts as silent."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from gptrs.checkpoint.config_fields import Fields, is_number
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.option_fields import NUMBERS, Missing, Option, Options, option_fields

_CONDITIONED_BELOW: Final = 0.5
"""Text drawn above this temperature does not become the prompt of the next window."""
_Doubt = partial(
    Option, panel="Doubtful windows", request=Missing("the protocol has `temperature` alone")
)


class Quality(NamedTuple):
    """Figures of a text of a window.

    `logprob` is the mean over its tokens, including the end token; `compression_ratio` is high for
    text that repeats itself; `no_speech` is the probability of silence, None if the model has no
    token for that.
    """

    logprob: float
    compression_ratio: float
    no_speech: float | None


class Fallback(Options, frozen=True):
    """Settings for windows whose text is doubtful, as transformers' `generate` has them.

    A window is written at the first of the temperatures (0: the likeliest tokens). If its text
    compresses better than `compression_ratio_threshold`, or the mean log-probability of its tokens
    is below `logprob_threshold`, it is decoded again at the next one; the result of the last one is
    always used. A window below `logprob_threshold` that is silent with a probability above
    `no_speech_threshold` has no text. With `condition_on_prev_tokens` the text before is the prompt
    of a window. None follows generation_config.json, else is off. With a `seed` drawn tokens are
    the same each time. UsageError for values out of range.
    """

    temperature: Annotated[
        float | Sequence[float],
        Meta(description="Tried one after another, such as 0,0.2,0.4."),
        _Doubt(kind=NUMBERS, metavar="T,T,..", parsed=str),
    ] = 0.0
    compression_ratio_threshold: (
        Annotated[
            float,
            Meta(description="Text that compresses more repeats itself."),
            _Doubt(called="`compression_ratio_threshold`", setting="compression_ratio_threshold"),
        ]
        | None
    ) = None
    logprob_threshold: (
        Annotated[
            float,
            Meta(description="Text whose mean log-probability is below is poor."),
            _Doubt(called="`logprob_threshold`", setting="logprob_threshold"),
        ]
        | None
    ) = None
    no_speech_threshold: (
        Annotated[
            float,
            Meta(description="Drop poor text if silence is likelier than this."),
            _Doubt(called="`no_speech_threshold`", setting="no_speech_threshold"),
        ]
        | None
    ) = None
    condition_on_prev_tokens: (
        Annotated[
            bool,
            Meta(description="Show each window the text before it."),
            _Doubt(
                flag="--condition-on-prev-tokens/--no-condition-on-prev-tokens",
                setting="condition_on_prev_tokens",
            ),
        ]
        | None
    ) = None
    seed: (
        Annotated[
            int,
            Meta(ge=0, description="Draw the same tokens each time."),
            _Doubt(called="the seed"),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.temperatures
        if not found or not all(math.isfinite(each) and each >= 0 for each in found):
            raise UsageError(f"temperatures are finite numbers >= 0, got {self.temperature}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Return the temperatures in the order in which they are tried."""
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (given,)

    def configured(self, settings: Mapping[str, object]) -> Fallback:
        """Return these settings, with None replaced by those of generation_config.json.

        ModelError for a setting of another kind; UsageError for a threshold of silence without
        `logprob_threshold`, which it depends on.
        """
        fields = Fields(settings, "in generation_config.json")
        given = {
            name: _setting(fields, field.option.setting, field.type)
            for name, field in option_fields(Fallback).items()
            if isinstance(field.option.setting, str) and getattr(self, name) is None
        }
        found = replace(self, **given)
        if found.no_speech_threshold is not None and found.logprob_threshold is None:
            raise UsageError(
                "`no_speech_threshold` has an effect below `logprob_threshold` only, which is"
                " missing",
                hint="give both, such as 0.6 and -1",
            )
        return found

    def is_silent(self, quality: Quality) -> bool:
        """Return whether the window has no text."""
        limit, silence = self.no_speech_threshold, quality.no_speech
        return (
            limit is not None and silence is not None and silence > limit and self._is_poor(quality)
        )

    def is_doubtful(self, quality: Quality) -> bool:
        """Return whether the window must be decoded again."""
        limit = self.compression_ratio_threshold
        repeats = limit is not None and quality.compression_ratio > limit
        return (repeats or self._is_poor(quality)) and not self.is_silent(quality)

    def conditions_next(self, temperature: float) -> bool:
        """Return whether text at this temperature is part of the prompt of the next window."""
        return bool(self.condition_on_prev_tokens) and temperature < _CONDITIONED_BELOW

    def _is_poor(self, quality: Quality) -> bool:
        limit = self.logprob_threshold
        return limit is not None and quality.logprob < limit


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Return the compression ratio of tokens, each as few bytes as fit the vocabulary."""
    size = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def _setting(fields: Fields, name: str, kind: type) -> float | bool | None:
    if kind is bool:
        return fields.boolean(name, False)
    value = fields.get(name)
    if value is not None and not is_number(value):
        raise ModelError(f"`{name}` in generation_config.json must be a number, found {value!r}")
    return None if value is None else float(value)
