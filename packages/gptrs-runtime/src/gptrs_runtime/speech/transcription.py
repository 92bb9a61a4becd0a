"""The text of a sound, and its parts with their times."""

from __future__ import annotations

from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Segment:
    """Text between two times, in seconds; `token_ids` include the tokens of the times."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """How a window of a sound was written, from `start` to `end` in seconds.

    `temperature` is the one that counted, 0 for the likeliest tokens; `avg_logprob` the mean
    log-probability of the tokens, `compression_ratio` that of their bytes, `no_speech_prob` the
    probability of silence, None if the model has no token for it. One that `is_silent` has no text.
    """

    start: float
    end: float
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None
    is_silent: bool


@dataclass(frozen=True)
class Transcription:
    """The text of a sound of so many seconds, and its segments.

    `language` is the code of the one that was spoken; None where the model does not tell. `windows`
    tell how the text came about, where a model writes it window by window.
    """

    text: str
    language: str | None
    seconds: float
    segments: tuple[Segment, ...]
    windows: tuple[Window, ...] = ()
