"""Timestamp tokens between words: which may come next, and the segments that they delimit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, cast

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import UsageError
from gptrs.plugins.capabilities import CTCModel
from gptrs.progress import SoundProgress
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.speech.ctc_vocabulary import ctc_vocabulary_of

SECONDS: Final = 0.02
"""Frames per timestamp step."""
FRAMES: Final = 2


class TimestampRules(Struct, frozen=True):
    """The timestamps of a model, with the rules that transformers has.

    Tokens from `first` on are timestamps; `none` is the token for no timestamps; `end` ends a text.
    A text begins with a time, at most `most_first` steps after the start. Times come in pairs and
    never fall. Where all times together are likelier than any word, a time is next.
    """

    none: int
    end: int
    most_first: int | None = None

    @property
    def first(self) -> int:
        """The token of the time 0."""
        return self.none + 1

    def __call__(self, written: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """Modify the logits f32 [V] of the token after `written`."""
        first, times = self.first, [token for token in written if token >= self.first]
        logits[self.none] = -np.inf
        last = bool(written) and written[-1] >= first
        before = len(written) < 2 or written[-2] >= first
        if last and before:
            logits[first:] = -np.inf
        elif last:
            logits[: self.end] = -np.inf
        if times:
            logits[first : times[-1] + (0 if last and not before else 1)] = -np.inf
        if not written:
            logits[:first] = -np.inf
            if self.most_first is not None:
                logits[first + self.most_first + 1 :] = -np.inf
        best = logits.max()
        of_times = np.log(np.exp((logits[first:] - best).astype(np.float64)).sum() or 1e-300)
        if best + of_times > logits[:first].max(initial=-np.inf):
            logits[:first] = -np.inf
        return logits


class Part(NamedTuple):
    """Tokens between two times, which are in steps from the start of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def parts_of(tokens: Sequence[int], first: int, frames: int) -> tuple[list[Part], int]:
    """Return the parts of a window of that many frames, and how many frames are finished.

    Two times in a row end one part and begin another. The rest after the last pair is not finished:
    the next window begins there. A single time at the end says that nothing follows it.
    """
    is_time = [token >= first for token in tokens]
    ends = [n + 1 for n in range(len(tokens) - 1) if is_time[n] and is_time[n + 1]]
    if not ends:
        times = [token for token in tokens if token >= first]
        last = times[-1] - first if times and times[-1] != first else frames / FRAMES
        return [Part(0, last, tuple(tokens))], frames
    single = is_time[-2:] == [False, True]
    if single:
        ends.append(len(tokens))
    else:
        ends[-1] += 1
    found: list[Part] = []
    begin = 0
    for number, end in enumerate(ends):
        own = tokens[begin:end]
        is_last = number == len(ends) - 1
        last = own[-1] if not is_last or single else own[-2]
        found.append(Part(own[0] - first, last - first, tuple(own)))
        begin = end
    return found, frames if single else (tokens[begin - 2] - first) * FRAMES


# CTC transcription by the best token of each frame, in overlapping chunks joined within the
# overlaps.


CHUNK_SECONDS: Final = 30.0
"""Seconds of the longest chunk: the cost of attention grows with its square."""
_EDGES: Final = 6
"""The share of a chunk at each edge that serves only as context."""
_SMALLEST_VARIANCE: Final = 1e-7


class Samples(Protocol):
    """Samples f32 [size], read in parts."""

    @property
    def size(self) -> int:
        """The number of samples."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the samples from a position to another, as far as there are any."""
        ...


class SoundForm(NamedTuple):
    """How a model takes sound: its rate in Hz, and whether each chunk is normalized."""

    rate: int
    normalizes: bool


def sound_form_of(files: ModelSource) -> SoundForm:
    """Return the settings of a `Wav2Vec2FeatureExtractor`; ModelError for another extractor."""
    fields = _extractor_of(files)
    fields.require("feature_extractor_type", "Wav2Vec2FeatureExtractor")
    fields.require("feature_size", 1)
    return SoundForm(fields.integer("sampling_rate", 16_000), fields.boolean("do_normalize", True))


def require_log_mel(files: ModelSource) -> None:
    """Raise ModelError for features that differ from those of `LogMel` in more than their number.

    Models of other features would hear something else.
    """
    fields = _extractor_of(files)
    fields.require("feature_extractor_type", "WhisperFeatureExtractor")
    fixed = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "dither": 0}
    for name, value in fixed.items():
        fields.require(name, value)


def _extractor_of(files: ModelSource) -> Fields:
    """Return the settings of the feature extractor: as in transformers nested ones go first."""
    below = (files.read_json("processor_config.json") or {}).get("feature_extractor")
    nested = cast("dict[str, object]", below) if isinstance(below, dict) else None
    found = files.read_json("preprocessor_config.json") if nested is None else nested
    return Fields(found or {}, "of the feature extractor")


def transcribe_frames(
    model: LoadedModel,
    sound: Samples,
    form: SoundForm,
    *,
    timestamps: bool,
    progress: SoundProgress | None,
    chunk_seconds: float = CHUNK_SECONDS,
) -> Transcription:
    """Return the text of a sound at the rate of `form`, with a segment for each word.

    Without `timestamps` the whole is one segment. Chunks overlap, as in transformers' pipeline
    with `chunk_length_s`. UsageError for a sound that is too short for a frame.
    """
    hearer = model.ctc()
    seconds = sound.size / form.rate
    require_frames(model, hearer.frame_count(sound.size), sound.size, form)
    vocabulary = ctc_vocabulary_of(model.files, model.name)
    step, best = hearer.frame_samples, list[int]()
    for chunk in chunks_of(sound.size, step, round(chunk_seconds * form.rate / step)):
        if progress is not None:
            progress(chunk.start / form.rate, seconds)
        best += _best_tokens(hearer, sound.read(chunk.start, chunk.end), chunk, form)
    if progress is not None:
        progress(seconds, seconds)
    text, words = vocabulary.text(best), vocabulary.words(best)
    if timestamps:
        scale = step / form.rate
        segments = [
            Segment(
                round(word.start * scale, 3), round(word.end * scale, 3), word.text, word.token_ids
            )
            for word in words
        ]
    else:
        ids = tuple(token for word in words for token in word.token_ids)
        segments = [Segment(0.0, round(seconds, 3), text, ids)] if text else []
    return Transcription(text, None, seconds, tuple(segments))


def require_frames(model: LoadedModel, frames: int, samples: int, form: SoundForm) -> None:
    """Raise UsageError if this number of samples gives no frame."""
    if frames < 1:
        raise UsageError(
            f"{samples} samples are too few for `{model.name}` to hear",
            hint=f"they are {samples / form.rate:.4f} seconds at {form.rate} Hz",
        )


def normalized(samples: np.ndarray) -> np.ndarray:
    """Return samples f32 [N] of mean 0 and variance 1, as a `Wav2Vec2FeatureExtractor` does."""
    spread = np.sqrt(samples.var() + _SMALLEST_VARIANCE)
    return ((samples - samples.mean()) / spread).astype(np.float32)


class Chunk(NamedTuple):
    """Samples from `start` to before `end`; of the frames, those in `kept` count."""

    start: int
    end: int
    kept: slice


def chunks_of(samples: int, step: int, frames: int) -> Iterator[Chunk]:
    """Yield overlapping chunks of `frames`, each of `step` samples, that cover the sound.

    Neighbours share two edges; frames in an edge that has a neighbour are left out. The arithmetic
    follows transformers' pipeline.
    """
    length, edge = frames * step, round(frames / _EDGES) * step
    for start in range(0, samples, max(length - 2 * edge, step)):
        end = min(start + length, samples)
        left = 0 if not start else edge
        right = 0 if end == samples else edge
        size = end - start
        if size > left:
            total = round(size / step)
            first, last = (round(side / size * total) for side in (left, right))
            yield Chunk(start, end, slice(first, total - last))
        if start + length >= samples:
            return


def _best_tokens(hearer: CTCModel, samples: np.ndarray, chunk: Chunk, form: SoundForm) -> list[int]:
    count = hearer.frame_count(samples.size)
    if count < 1:
        return []
    samples = normalized(samples) if form.normalizes else samples
    logits = hearer.score_frames(samples[None], [samples.size])[0, :count]
    return [int(token) for token in logits.argmax(axis=-1)[chunk.kept]]


# Segments as subtitles: SubRip (SRT) and WebVTT.


def srt(segments: Sequence[Segment]) -> str:
    """Return segments as a SubRip file."""
    return "\n".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{each.text.strip()}\n"
        for number, each in enumerate(segments, start=1)
    )


def vtt(segments: Sequence[Segment]) -> str:
    """Return segments as a WebVTT file."""
    cues = (
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_escaped(each.text)}\n"
        for each in segments
    )
    return "\n".join(["WEBVTT\n", *cues])


def _escaped(text: str) -> str:
    return text.strip().replace("&", "&amp;").replace("<", "&lt;")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"
