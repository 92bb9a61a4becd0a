"""Transcribe speech, in windows, frame by frame, or between silences."""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import override

from gptrs.errors import UsageError
from gptrs.progress import SoundProgress
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Transcription
from gptrs_runtime.speech.fallback import Fallback
from gptrs_runtime.speech.sound_files import (
    RATE,
    Sound,
    decoded_sound,
    read_sound,
    sent_seconds,
    transcribe_sounds,
)
from gptrs_runtime.speech.timestamps import require_log_mel, sound_form_of, transcribe_frames
from gptrs_runtime.speech.window_settings import WindowSettings
from gptrs_runtime.speech.windows import transcribe_windows

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Task = Literal["transcribe", "translate"]


def transcribe(
    model: LoadedModel,
    sound: str | Path | bytes | memoryview | np.ndarray,
    *,
    rate: int = RATE,
    language: str | None = None,
    task: Task | None = None,
    timestamps: bool = True,
    fallback: Fallback | None = None,
    progress: SoundProgress | None = None,
) -> Transcription:
    """Transcribe a file, by its path or its bytes, or samples f32 [N] in [-1, 1] at `rate` Hz.

    Any length, but bytes hold at most half an hour, or a second for each 16 kB. The sound is heard
    in windows, each begins where the last finished segment ends. `language` is a code such as `en`;
    None lets the model detect it. `task` "translate" writes English. Without `timestamps` a window
    is one segment. `fallback` says which windows are decoded again, and which count as silent; by
    default generation_config.json decides.

    Models with the capability `ctc` or `sound_transcriber` have none of these choices; segments are
    words (`ctc`) or parts between silences (`sound_transcriber`), or a single one without
    `timestamps`. UsageError for a file or samples that cannot be read, and for choices that the
    model lacks; ModelError for a model without these capabilities.
    """
    if not model.capabilities.isdisjoint(("ctc", "sound_transcriber")):
        _require_no_choice(model, language, task, fallback)
        form = sound_form_of(model.files)
        write = transcribe_frames if "ctc" in model.capabilities else transcribe_sounds
        with _opened(sound, rate, form.rate) as samples:
            return write(model, samples, form, timestamps=timestamps, progress=progress)
    hearer = model.transcriber()
    require_log_mel(model.files)
    settings = WindowSettings(model, hearer, timestamps=timestamps)
    found = (fallback or Fallback()).configured(model.generation_config)
    if found.no_speech_threshold is not None and settings.silence is None:
        raise UsageError(
            f"`{model.name}` has no token of silence",
            hint="leave out `no_speech_threshold`",
        )
    with _opened(sound, rate, RATE) as samples:
        return transcribe_windows(model, samples, settings, found, (language, task), progress)


def _require_no_choice(
    model: LoadedModel, language: str | None, task: Task | None, fallback: Fallback | None
) -> None:
    """Raise UsageError for choices that a model which takes raw sound does not have."""
    asked = "the fallback of doubtful windows" if fallback is not None else None
    asked = f"the language {quoted(language)}" if language is not None else asked
    asked = f"the task {quoted(task)}" if task not in (None, "transcribe") else asked
    if asked is not None:
        raise UsageError(
            f"`{model.name}` writes its best tokens, in the language of its vocabulary; {asked}"
            " was asked for",
            hint="leave it out, or take a model with the capability `transcriber`",
        )


@contextmanager
def _opened(
    sound: str | Path | bytes | memoryview | np.ndarray, rate: int, wanted: int
) -> Generator[Sound]:
    """Scope in which a sound is read at `wanted` Hz."""
    if isinstance(sound, bytes | memoryview):
        file = io.BufferedReader(_Bytes(sound))
        yield decoded_sound(file, "the sound", wanted, sent_seconds(len(sound)))
    elif not isinstance(sound, np.ndarray):
        with read_sound(sound, wanted) as found:
            yield found
    else:
        yield _given(sound, rate, wanted)


def _given(sound: np.ndarray, rate: int, wanted: int) -> Sound:
    if sound.ndim != 1 or sound.dtype.kind != "f" or not sound.size or rate < 1:
        raise UsageError(
            f"a sound is a path or samples of floats [N], got {sound.dtype}{list(sound.shape)}"
            f" at {rate} Hz"
        )
    if not np.isfinite(sound).all():
        raise UsageError("the samples of a sound must be finite")
    return Sound(lambda start, stop: sound[start:stop].astype(np.float64), sound.size, rate, wanted)


class _Bytes(io.RawIOBase):
    """A file of bytes in memory: unlike `BytesIO`, it copies no part of another object."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, len(self._data))[whence]
        self._at = max(0, base + offset)
        return self._at

    @override
    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer)
        part = self._data[self._at : self._at + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)
