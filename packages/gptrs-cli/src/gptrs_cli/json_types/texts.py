"""Results of commands that read texts with the head of an encoder."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from gptrs_cli.json_types.running import Number, RunTimings


class ClassScore(TypedDict):
    """A class, and how much a text is of it."""

    label: str
    score: float


class Classify(TypedDict):
    """`gptrs classify`."""

    model: str
    kind: str
    backend: str
    texts: list[str]
    pairs: NotRequired[list[str]]
    """With `--pair`: the second text of each."""
    truncated: NotRequired[list[int]]
    """The numbers, from 0, of texts that were cut to what the model reads, if there are some."""
    classes: list[list[ClassScore]]
    """The classes of each text, the best first."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class RankedText(TypedDict):
    """A document: its number in the given order, from 0."""

    index: int
    score: float
    text: str


class Rank(TypedDict):
    """`gptrs rank`."""

    model: str
    kind: str
    backend: str
    query: str
    ranking: list[RankedText]
    """The best first."""
    truncated: NotRequired[list[int]]
    """The numbers of documents that were cut to what the model reads, if there are some."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class Match(TypedDict):
    """`gptrs match`."""

    model: str
    kind: str
    backend: str
    images: list[str]
    texts: list[str]
    truncated: NotRequired[list[int]]
    """The numbers, from 0, of texts that were cut to what the model reads, if there are some."""
    logits: list[list[Number]]
    """For each image one for each text."""
    probabilities: list[list[Number]]
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class NamedPart(TypedDict):
    """A part of a text, by characters from and to, and its class."""

    label: str
    score: float
    start: int
    end: int
    text: str


class Tag(TypedDict):
    """`gptrs tag`."""

    model: str
    kind: str
    backend: str
    texts: list[str]
    entities: list[list[NamedPart]]
    """The named parts of each text, in the order of the text."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class MaskedWord(TypedDict):
    """A token for a masked place, its text, and its probability there."""

    token: int
    text: str
    score: float


class Fill(TypedDict):
    """`gptrs fill`."""

    model: str
    kind: str
    backend: str
    texts: list[str]
    fillings: list[list[list[MaskedWord]]]
    """Of each text for each masked place the likeliest ones, the best first."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class SpokenPart(TypedDict):
    """Text between two times, in seconds; `token_ids` include the tokens of the times."""

    start: float
    end: float
    text: str
    token_ids: list[int]


class SpokenWindow(TypedDict):
    """A window of a sound, with times in seconds, and how its text came about."""

    start: float
    end: float
    temperature: float
    """The one that counted; 0 for the likeliest tokens."""
    avg_logprob: Number
    compression_ratio: float
    no_speech_prob: float | None
    """The probability of silence; null for a model without a token of it."""
    is_silent: bool
    """Whether the window has no text for that reason."""


class Transcribe(TypedDict):
    """`gptrs transcribe`."""

    model: str
    kind: str
    backend: str
    file: str
    text: str
    language: str | None
    """The code of the one that is spoken; null for a model of one language."""
    seconds: float
    """Of the sound."""
    segments: list[SpokenPart]
    windows: list[SpokenWindow]
    """None of a model that writes frame by frame."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]
