"""The text of a sound, and its parts with their times."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.quick_dataclass import dataclass

Progress = Callable[[float, float], None]
"""Called with the seconds that were heard, and all."""


@dataclass(frozen=True)
class Segment:
    """Text between two times, in seconds; `token_ids` include the tokens of the times."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Transcription:
    """The text of a sound of so many seconds, and its segments.

    `language` is the code of the one that was spoken; None where the model does not tell.
    """

    text: str
    language: str | None
    seconds: float
    segments: tuple[Segment, ...]
