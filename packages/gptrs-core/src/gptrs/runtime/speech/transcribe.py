"""Transcribe speech: windows of 30 seconds, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.capabilities import Transcriber
from gptrs.quoting import listed, quoted
from gptrs.runtime.loaded_model import LoadedModel
from gptrs.runtime.speech.features import HOP, RATE, log_mel
from gptrs.runtime.speech.frame_text import sound_form_of, transcribe_frames
from gptrs.runtime.speech.sound_files import read_sound, resampled
from gptrs.runtime.speech.timestamps import SECONDS, Part, TimestampRules, parts_of
from gptrs.runtime.speech.transcription import Progress, Segment, Transcription

Task = Literal["transcribe", "translate"]

_FRAMES_PER_SECOND: Final = RATE // HOP


def transcribe(
    model: LoadedModel,
    sound: str | Path | np.ndarray,
    *,
    rate: int = RATE,
    language: str | None = None,
    task: Task | None = None,
    timestamps: bool = True,
    progress: Progress | None = None,
) -> Transcription:
    """Write down what is said in a WAV file, or in samples f32 [N] in [-1, 1] of `rate` Hz.

    Any length: the sound is heard in windows, each begins where the last finished segment ends.
    `language` is a code such as `en`; None lets the model tell. `task` "translate" writes English.
    Without `timestamps` a window is one segment. Models with the capability `ctc` have neither
    languages nor tasks; their segments are words, or one without `timestamps`. UsageError for a
    file or samples that cannot be read, and languages and tasks that the model does not know;
    ModelError for a model that has neither the capability `transcriber` nor `ctc`.
    """
    if "ctc" in model.capabilities:
        _require_no_choice(model, language, task)
        form = sound_form_of(model.files)
        samples = _samples(sound, rate, form.rate)
        return transcribe_frames(model, samples, form, timestamps=timestamps, progress=progress)
    hearer = model.transcriber()
    samples = _samples(sound, rate, RATE)
    window = hearer.frames * HOP
    whole = np.pad(samples, (0, max(0, window - samples.size)))
    features = log_mel(whole, hearer.mel_bins, model.backend)
    writer = _Writer(model, hearer, timestamps=timestamps)
    frames = max(1, samples.size // HOP)
    begin = writer.begin(_window(features, 0, hearer.frames), language, task)
    segments: list[Segment] = []
    place = 0
    while place < frames:
        if progress is not None:
            progress(place / _FRAMES_PER_SECOND, frames / _FRAMES_PER_SECOND)
        known = min(hearer.frames, max(frames, hearer.frames) - place)
        parts, done = writer.parts(_window(features, place, hearer.frames), begin, known)
        segments += [writer.segment(part, place) for part in parts]
        place += done or known
    if progress is not None:
        progress(frames / _FRAMES_PER_SECOND, frames / _FRAMES_PER_SECOND)
    text = "".join(segment.text for segment in segments)
    return Transcription(text, writer.language, samples.size / RATE, tuple(segments))


def _require_no_choice(model: LoadedModel, language: str | None, task: Task | None) -> None:
    """UsageError for choices that a model does not have which scores the tokens of frames."""
    asked = f"language {quoted(language)}" if language is not None else None
    asked = f"task {quoted(task)}" if task not in (None, "transcribe") else asked
    if asked is not None:
        raise UsageError(
            f"`{model.name}` writes what is spoken in the language of its vocabulary, the {asked}"
            " was asked for",
            hint="leave it out, or take a model with the capability `transcriber`",
        )


def _samples(sound: str | Path | np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return a sound as f32 [N] at `wanted` Hz."""
    if not isinstance(sound, np.ndarray):
        return read_sound(sound, wanted)
    if sound.ndim != 1 or sound.dtype.kind != "f" or not sound.size or rate < 1:
        raise UsageError(
            f"a sound is a path or samples of floats [N], got {sound.dtype}{list(sound.shape)}"
            f" at {rate} Hz"
        )
    if not np.isfinite(sound).all():
        raise UsageError("the samples of a sound must be finite")
    return resampled(sound.astype(np.float64), rate, wanted).astype(np.float32)


def _window(features: np.ndarray, place: int, frames: int) -> np.ndarray:
    """Return the features f32 [1, mels, frames] from `place` on, zeros behind the end."""
    part = features[:, place : place + frames]
    return np.pad(part, ((0, 0), (0, frames - part.shape[1])))[None]


class _Writer:
    """Writes the text of windows greedily, by the settings of a model."""

    def __init__(self, model: LoadedModel, hearer: Transcriber, *, timestamps: bool) -> None:
        self._model, self._hearer = model, hearer
        settings = {**model.config, **model.generation_config}
        fields = Fields(settings, "in generation_config.json")
        self._languages = _numbers(fields, "lang_to_id")
        self._tasks = _numbers(fields, "task_to_id")
        ends = model.eos_tokens
        if len(ends) != 1:
            raise ModelError("`eos_token_id` must be one token for a model that hears")
        (self._end,) = ends
        self._start = fields.integer("decoder_start_token_id", minimum=0)
        none = settings.get("no_timestamps_token_id")
        self._rules: TimestampRules | None = None
        self._none = None if none is None else fields.integer("no_timestamps_token_id", minimum=0)
        if timestamps and self._none is not None:
            most = fields.get("max_initial_timestamp_index")
            limit = None if most is None else fields.integer("max_initial_timestamp_index")
            self._rules = TimestampRules(self._none, self._end, limit)
        self._never = _tokens(fields, "suppress_tokens")
        self._not_first = _tokens(fields, "begin_suppress_tokens")
        most_positions = fields.integer("max_length", hearer.context_length)
        self._most = min(most_positions, hearer.context_length)
        self._forced = _forced(fields)
        self.language: str | None = None

    def begin(self, window: np.ndarray, language: str | None, task: str | None) -> list[int]:
        """Return the tokens that each text begins with: its language, its task, or no times."""
        found = [self._start, *self._forced]
        number = self._language(window, language, found)
        if number is not None:
            found[1:2] = [number]
            known = {token: name for name, token in self._languages.items()}
            self.language = known[number].strip("<|>")
        if self._tasks:
            wanted = self._task(task, found)
            found = [t for t in found if t not in self._tasks.values()] + [wanted]
        elif task is not None:
            raise UsageError(f"`{self._model.name}` has no tasks", hint="leave out the task")
        found = [token for token in found if token >= 0 and token != self._none]
        return found if self._rules is not None or self._none is None else [*found, self._none]

    def _language(
        self, window: np.ndarray, language: str | None, begin: Sequence[int]
    ) -> int | None:
        if not self._languages:
            if language is not None:
                raise UsageError(f"`{self._model.name}` knows one language only")
            return None
        if language is not None:
            number = self._languages.get(f"<|{language.lower()}|>")
            if number is None:
                names = [name.strip("<|>") for name in self._languages]
                raise UsageError(
                    f"{quoted(language)} is no language of `{self._model.name}`",
                    hint=f"it knows {listed(names, 12)}",
                )
            return number
        given = begin[1] if len(begin) > 1 else -1
        if given in self._languages.values():
            return given
        state = self._hearer.hear(window)
        logits = self._hearer.write(np.array([[self._start]]), state)[0, -1]
        numbers = list(self._languages.values())
        return numbers[int(np.argmax(logits[numbers]))]

    def _task(self, task: str | None, begin: Sequence[int]) -> int:
        if task is None:
            given = [token for token in begin if token in self._tasks.values()]
            task = cast("str", self._model.generation_config.get("task") or "transcribe")
            if given:
                return given[0]
        if task not in self._tasks:
            raise UsageError(
                f"{quoted(str(task))} is no task of `{self._model.name}`",
                hint=f"it knows {listed(self._tasks, 4)}",
            )
        return self._tasks[task]

    def parts(
        self, window: np.ndarray, begin: Sequence[int], frames: int
    ) -> tuple[list[Part], int]:
        """Return the parts of a window, and how many of its frames are done with."""
        state = self._hearer.hear(window)
        written: list[int] = []
        new = list(begin)
        while len(begin) + len(written) < self._most:
            logits = self._hearer.write(np.array([new]), state)[0, -1].copy()
            if not written:
                logits[self._not_first] = -np.inf
            logits[self._never] = -np.inf
            if self._rules is not None:
                logits = self._rules(written, logits)
            token = int(logits.argmax())
            if token == self._end:
                break
            written.append(token)
            new = [token]
        first = self._hearer.vocab_size if self._rules is None else self._rules.first
        return parts_of(written, first, frames)

    def segment(self, part: Part, place: int) -> Segment:
        """Return a part of the window that begins at the frame `place`."""
        offset = place / _FRAMES_PER_SECOND
        words = [token for token in part.tokens if token < self._end]
        text = self._model.tokenizer.decode(words) if self._model.has_tokenizer else ""
        start, end = (round(offset + steps * SECONDS, 3) for steps in (part.start, part.end))
        return Segment(start, end, text, part.tokens)


def _numbers(fields: Fields, name: str) -> dict[str, int]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise fields.error(name, "must be a table of tokens")
    table = cast("Mapping[str, object]", value)
    return {key: Fields(table, f"of `{name}`").integer(key, minimum=0) for key in table}


def _tokens(fields: Fields, name: str) -> list[int]:
    return list(fields.integers(name, (), minimum=0)) if fields.get(name) else []


def _forced(fields: Fields) -> list[int]:
    """Return the tokens of `forced_decoder_ids`, pairs of a place from 1 on and a token or null.

    A null is -1: the model tells.
    """
    name = "forced_decoder_ids"
    pairs = fields.get(name, [])
    found: list[int] = []
    for place, pair in enumerate(cast("list[object]", pairs) if isinstance(pairs, list) else [0]):
        entry = cast("list[object]", pair) if isinstance(pair, list) else []
        token = entry[1] if len(entry) == 2 else "none"
        if not entry or entry[0] != place + 1 or not (token is None or isinstance(token, int)):
            raise fields.error(name, "must be a list of places and tokens")
        found.append(-1 if token is None else token)
    return found
