"""Transcribe speech in windows of 30 seconds, each behind the last finished segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from gptrs.nn.decoder_cache import DecoderState
from gptrs.plugins.capabilities import Transcriber
from gptrs.progress import SoundProgress
from gptrs_runtime.generation.logits_processors import ProcessorChain, built_in_processors
from gptrs_runtime.generation.model_settings import configured_sampling
from gptrs_runtime.generation.sampling import Sampler, candidates
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription, Window
from gptrs_runtime.speech.fallback import Fallback, Quality, compression_ratio
from gptrs_runtime.speech.sound_files import HOP, RATE, LogMel, Sound
from gptrs_runtime.speech.timestamps import SECONDS, Part, parts_of
from gptrs_runtime.speech.window_settings import WindowSettings

_FRAMES_PER_SECOND: Final = RATE // HOP
_SHORT: Final = 8
"""The most tokens that are read in one piece, see `_pieces`."""


def transcribe_windows(
    model: LoadedModel,
    sound: Sound,
    settings: WindowSettings,
    fallback: Fallback,
    asked: tuple[str | None, str | None],
    progress: SoundProgress | None,
) -> Transcription:
    """Return the text of a sound at 16 kHz in the language and for the task `asked`.

    UsageError for a language and a task that the model does not know.
    """
    hearer = model.transcriber()
    frames = max(1, sound.size // HOP)
    total = frames / _FRAMES_PER_SECOND

    def beginning() -> None:
        if progress is not None:
            progress(0.0, total)

    # The encoder takes whole windows only, so shorter sounds are padded with silence.
    features = LogMel(sound, hearer.mel_bins, hearer.frames, beginning)
    begin = settings.begin(features.window(0, hearer.frames)[None], *asked)
    writer = _Writer(model, settings, fallback, begin)
    segments: list[Segment] = []
    windows: list[Window] = []
    frame = 0
    while frame < frames:
        if progress is not None:
            progress(frame / _FRAMES_PER_SECOND, total)
        known = min(hearer.frames, max(frames, hearer.frames) - frame)
        text, is_silent = writer.written(features.window(frame, hearer.frames)[None])
        windows.append(_shown(text, frame, min(known, frames - frame), is_silent=is_silent))
        parts, done = ([], known)
        if not is_silent:
            parts, done = parts_of(text.tokens, settings.first_time, known)
        segments += [_segment(model, settings, part, frame) for part in parts]
        writer.remember(parts, text.temperature)
        frame += done or known
    if progress is not None:
        progress(total, total)
    joined = "".join(segment.text for segment in segments)
    seconds = sound.size / RATE
    return Transcription(joined, settings.language, seconds, tuple(segments), tuple(windows))


class _Text(NamedTuple):
    """The tokens of a window without the end token, and their quality."""

    tokens: list[int]
    quality: Quality
    temperature: float


class _Writer:
    """Writes the texts of windows, one after another."""

    def __init__(
        self,
        model: LoadedModel,
        settings: WindowSettings,
        fallback: Fallback,
        begin: Sequence[int],
    ) -> None:
        self._hearer: Transcriber = model.transcriber()
        self._settings, self._fallback, self._begin = settings, fallback, list(begin)
        drawing = {**model.generation_config, "do_sample": True}
        self._sampling = configured_sampling(drawing, seed=fallback.seed)
        self._before: list[int] = []
        self._conditions = False
        self._most = settings.most
        self._draws = 0

    def written(self, window: np.ndarray) -> tuple[_Text, bool]:
        """Return the text of a window f32 [1, mels, frames], and whether it counts as silent."""
        source = self._hearer.hear(window)
        prompt = self._prompt()
        most = self._most_positions(len(prompt) + len(self._begin))
        *first, last = self._fallback.temperatures
        for temperature in first:
            text = self._attempt(source, prompt, most, temperature)
            if not self._fallback.is_doubtful(text.quality):
                break
        else:
            text = self._attempt(source, prompt, most, last)
        return text, self._fallback.is_silent(text.quality)

    def remember(self, parts: Sequence[Part], temperature: float) -> None:
        """Add the parts of a window to the text before the next one."""
        for part in parts:
            tokens = list(part.tokens)
            # As `skip_ending_double_timestamps` of transformers' `_pad_to_max_length`.
            twice = len(tokens) > 2 and tokens[-2] >= self._settings.first_time
            self._before += tokens[:-1] if twice else tokens
        self._conditions = self._fallback.conditions_next(temperature)

    def _prompt(self) -> list[int]:
        """Return the text before, as far as half of the context takes it."""
        if not self._conditions or not self._before:
            return []
        start = self._settings.start_of_previous
        return ([] if start is None else [start]) + self._before[-self._half :]

    @property
    def _half(self) -> int:
        return self._hearer.context_length // 2 - 1

    def _most_positions(self, given: int) -> int:
        """Return how many positions a text may have; as in transformers the limit grows."""
        context = self._hearer.context_length
        if self._settings.most_new is not None:
            return min(given + self._settings.most_new, context)
        self._most = min(self._most + min(self._half, given), context)
        return self._most

    def _attempt(
        self, source: DecoderState, prompt: Sequence[int], most: int, temperature: float
    ) -> _Text:
        settings, hearer = self._settings, self._hearer
        state = DecoderState(source.source, source.mask)
        given = [*prompt, *self._begin]
        read = [row for part in _pieces(given) for row in hearer.write(np.array([part]), state)[0]]
        silence = settings.silence
        # The probability of no speech is read right after the start token, before language and
        # task, as in OpenAI's `DecodingTask`.
        at_start = read[len(prompt)]
        no_speech = None if silence is None else float(np.exp(_log_softmax(at_start)[silence]))
        sampling = replace(self._sampling, temperature=temperature)
        sampler = Sampler(sampling, self._draws)
        # A random stream for each attempt that samples; with one seed they would draw alike.
        self._draws += temperature > 0
        what = sampling, settings.token_rules, [settings.end], len(given)
        processors = built_in_processors(*what, count=most - len(given))
        chain = ProcessorChain(processors, given)
        logits, tokens, total = read[-1], list[int](), 0.0
        while len(given) + len(tokens) < most:
            logits = settings.allowed(tokens, chain(logits).copy())
            token = sampler.choose(logits)
            total += _log_probability(logits, token, sampling)
            tokens.append(token)
            chain.append(token)
            if token == settings.end:
                break
            if len(given) + len(tokens) < most:
                logits = hearer.write(np.array([[token]]), state)[0, -1]
        count = max(len(tokens), 1)
        ratio = compression_ratio(tokens, hearer.vocab_size)
        text = tokens[:-1] if tokens[-1:] == [settings.end] else tokens
        return _Text(text, Quality(total / count, ratio, no_speech), temperature)


def _pieces(tokens: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield tokens in pieces of few different sizes: programs are compiled for each size."""
    frame = 0
    while len(tokens) - frame > _SHORT:
        size = 1 << ((len(tokens) - frame).bit_length() - 1)
        yield tokens[frame : frame + size]
        frame += size
    if frame < len(tokens):
        yield tokens[frame:]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    apart = (logits - logits.max()).astype(np.float64)
    return apart - np.log(np.exp(apart).sum())


def _log_probability(logits: np.ndarray, token: int, sampling: Sampling) -> float:
    """Return the log-probability of a token at temperature 1, among those that may be drawn."""
    found = _log_softmax(logits)
    if sampling.greedy:
        return float(found[token])
    drawn, _ = candidates(logits, sampling)
    kept = found[np.asarray(drawn)]
    return float(found[token] - np.log(np.exp(kept).sum()))


def _segment(model: LoadedModel, settings: WindowSettings, part: Part, frame: int) -> Segment:
    """Return a part of the window that begins at the frame `frame`."""
    offset = frame / _FRAMES_PER_SECOND
    words = [token for token in part.tokens if token < settings.end]
    text = model.tokenizer.decode(words) if model.has_tokenizer else ""
    start, end = (round(offset + steps * SECONDS, 3) for steps in (part.start, part.end))
    return Segment(start, end, text, part.tokens)


def _shown(text: _Text, frame: int, frames: int, *, is_silent: bool) -> Window:
    times = (frame / _FRAMES_PER_SECOND, (frame + frames) / _FRAMES_PER_SECOND)
    return Window(
        *times,
        temperature=text.temperature,
        avg_logprob=text.quality.logprob,
        compression_ratio=text.quality.compression_ratio,
        no_speech_prob=text.quality.no_speech,
        is_silent=is_silent,
    )
