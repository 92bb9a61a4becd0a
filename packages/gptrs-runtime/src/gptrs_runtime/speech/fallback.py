"""When a window of speech is written anew at another temperature, and when it counts as silent."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gptrs.checkpoint.config_fields import Fields, is_number
from gptrs.errors import ModelError, UsageError
from gptrs.quick_dataclass import dataclass

_CONDITIONED_BELOW: Final = 0.5
"""Text drawn above this temperature does not become the prompt of the next window."""
_THRESHOLDS: Final = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
_CONDITION: Final = "condition_on_prev_tokens"


class Quality(NamedTuple):
    """Figures of a text of a window.

    `logprob` is the mean of its tokens, that of the end included; `compression_ratio` is high for
    text that repeats itself; `no_speech` is the probability of silence, None if the model has no
    token for that.
    """

    logprob: float
    compression_ratio: float
    no_speech: float | None


@dataclass(frozen=True)
class Fallback:
    """Settings for windows whose text is doubtful, as transformers' `generate` has them.

    A window is written at the first of the temperatures (0: the likeliest tokens). If its text
    compresses better than `compression_ratio_threshold`, or the mean log-probability of its tokens
    is below `logprob_threshold`, it is written anew at the next one; the last one counts whatever
    it gives. A window below `logprob_threshold` that is silent with a probability above
    `no_speech_threshold` has no text. With `condition_on_prev_tokens` the text before is the
    prompt of a window. None is what generation_config.json says, or else off. With a `seed` drawn
    tokens are the same each time. UsageError for values out of range.
    """

    temperature: float | Sequence[float] = 0.0
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_prev_tokens: bool | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        found = self.temperatures
        if not found or not all(math.isfinite(each) and each >= 0 for each in found):
            raise UsageError(f"temperatures are finite numbers >= 0, got {self.temperature}")
        for name in _THRESHOLDS:
            value: float | None = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UsageError(f"`{name}` must be a finite number, got {value}")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"the seed must be an integer >= 0, got {self.seed}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Return the temperatures in the order in which they are tried."""
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (given,)

    def configured(self, settings: Mapping[str, object]) -> Fallback:
        """Return these settings, those of generation_config.json in place of None.

        ModelError for a setting of another kind; UsageError for a threshold of silence without
        `logprob_threshold`, which it depends on.
        """
        fields = Fields(settings, "in generation_config.json")
        given = {name: getattr(self, name) for name in _THRESHOLDS}
        given |= {name: _number(fields, name) for name, value in given.items() if value is None}
        if given["no_speech_threshold"] is not None and given["logprob_threshold"] is None:
            raise UsageError(
                "`no_speech_threshold` has an effect below `logprob_threshold` only, which is"
                " missing",
                hint="give both, such as 0.6 and -1",
            )
        condition = self.condition_on_prev_tokens
        if condition is None:
            condition = fields.boolean(_CONDITION, False)
        return replace(self, **given, condition_on_prev_tokens=condition)

    def is_silent(self, quality: Quality) -> bool:
        """Return whether the window has no text."""
        limit, silence = self.no_speech_threshold, quality.no_speech
        return (
            limit is not None and silence is not None and silence > limit and self._is_poor(quality)
        )

    def is_doubtful(self, quality: Quality) -> bool:
        """Return whether the window must be written anew."""
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


def _number(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    if value is not None and not is_number(value):
        raise ModelError(f"`{name}` in generation_config.json must be a number, found {value!r}")
    return None if value is None else float(value)
