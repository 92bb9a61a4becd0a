"""Audio from WAV files, as one channel at a requested sampling rate."""

from __future__ import annotations

import math
import os
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.errors import UsageError
from gptrs.progress import SoundProgress
from gptrs.quoting import quoted
from gptrs_runtime.generation.logits_processors import ProcessorChain, built_in_processors
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_sampling,
    configured_suppression,
    note_unsupported,
)
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.source_cache import first_token
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription
from gptrs_runtime.speech.timestamps import SoundForm, normalized, require_frames

_OTHERS: Final = (".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".mp4")
_CONVERT: Final = "convert it, such as with `ffmpeg -i FILE -ar 16000 -ac 1 FILE.wav`"
_MOST_SECONDS: Final = 24 * 3600
_SENT_SECONDS: Final = 1800
_SENT_BYTES_PER_SECOND: Final = 16_000
_RATES: Final = (1_000, 768_000)
"""Samples a second of the sounds that are read."""
_SAMPLES_AT_ONCE: Final = 1 << 18
"""Samples that are converted at once."""
_LOBES: Final = 10
_BETA: Final = 5.0


def read_sound(path: str | Path, rate: int) -> np.ndarray:
    """Return the sound of a WAV file in [-1, 1] at `rate`, f32 [N], the mean of its channels.

    ModelError for a file that cannot be opened; UsageError for one that is damaged, empty, or of
    another format: WAV files hold integers of 8, 16, 24 or 32 bits.
    """
    shown = quoted(str(path), 200)
    if Path(path).suffix.lower() in _OTHERS:
        raise UsageError(f"{shown} is no WAV file, and no other is read", hint=_CONVERT)
    try:
        with os.fdopen(open_regular(resolved(path)), "rb") as opened:
            return decoded_sound(opened, shown, rate)
    except OSError as problem:
        told = f"{shown} cannot be read as a WAV file: {problem}"
        raise UsageError(told, hint=_CONVERT) from None


def sent_seconds(nbytes: int) -> int:
    """Return the most seconds of sound in a file of so many bytes, which a client may have sent.

    Few samples become many: half an hour takes 115 MB, longer sounds four times their file at most.
    """
    return max(_SENT_SECONDS, nbytes // _SENT_BYTES_PER_SECOND)


def decoded_sound(
    opened: IO[bytes], shown: str, rate: int, most_seconds: int = _MOST_SECONDS
) -> np.ndarray:
    """Return the sound in the bytes of a WAV file, which errors call `shown`; as `read_sound`.

    UsageError, too, for one of more than `most_seconds`.
    """
    try:
        with wave.open(opened, "rb") as file:
            channels, width, own_rate = (
                file.getnchannels(),
                file.getsampwidth(),
                file.getframerate(),
            )
            if file.getnframes() > most_seconds * own_rate:
                told = f"{shown} is longer than {most_seconds / 3600:g} hours"
                raise UsageError(told, hint="cut it into parts")
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as problem:
        reason = str(problem) or "it ends early"
        raise UsageError(f"{shown} cannot be read as a WAV file: {reason}", hint=_CONVERT) from None
    # Of odd rates the filter is as long as they are high, and slow ones become much longer.
    if not _RATES[0] <= own_rate <= _RATES[1] or width not in (1, 2, 3, 4):
        raise UsageError(f"{shown} has samples of {width} bytes at {own_rate} Hz", hint=_CONVERT)
    frame = width * channels
    size = len(data) // frame
    if not size:
        raise UsageError(f"{shown} holds no sound")

    def mono(start: int, stop: int) -> np.ndarray:
        samples = _integers(data[start * frame : stop * frame], width)
        return samples.reshape(-1, channels).mean(axis=1)

    return _resampled(mono, size, own_rate, rate, np.float32)


def _integers(data: bytes, width: int) -> np.ndarray:
    """Return samples in [-1, 1], f64; 8-bit samples are unsigned."""
    raw = np.frombuffer(data, np.uint8)
    if width == 1:
        return (raw.astype(np.float64) - 128) / 128
    high = np.zeros((raw.size // width, 4), np.uint8)
    high[:, 4 - width :] = raw.reshape(-1, width)
    return high.view("<i4")[:, 0] / 2.0**31


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return f64 samples at another rate, by a polyphase filter.

    A sinc of 10 lobes on each side in a Kaiser window of 5, as `scipy.signal.resample_poly` does.
    """
    return _resampled(lambda start, stop: samples[start:stop], samples.size, rate, wanted,
                      np.float64)  # fmt: skip


def _resampled(
    read: Callable[[int, int], np.ndarray],
    size: int,
    rate: int,
    wanted: int,
    dtype: type[np.floating],
) -> np.ndarray:
    """Return `size` samples at another rate; `read` gives f64 ones from a position to another."""
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    most = max(up, down)
    half = 0 if up == down else _LOBES * most
    taps = np.sinc(np.arange(-half, half + 1) / most) * np.kaiser(2 * half + 1, _BETA)
    taps *= up / taps.sum()
    reach = half // up + 1
    steps = np.arange(-reach, reach + 1)
    count = -(-size * up // down)
    found = np.empty(count, dtype)
    # In blocks of whole turns of the phases: at once, an hour would take 2 GB of f64.
    block = max(1, _SAMPLES_AT_ONCE // up) * up
    for begin in range(0, count, block):
        end = min(count, begin + block)
        low, high = begin * down // up - reach, end * down // up + reach + 1
        part = np.zeros(high - low)
        inner = slice(max(low, 0), min(high, size))
        part[inner.start - low : inner.stop - low] = read(inner.start, inner.stop)
        if up == down:
            found[begin:end] = part[reach : reach + end - begin]
            continue
        for phase in range(min(up, end - begin)):
            positions = np.arange(begin + phase, end, up) * down  # in the upsampled signal
            first = positions // up
            index = half + int(positions[0] - first[0] * up) - steps * up
            kept = (index >= 0) & (index < taps.size)
            total = np.zeros(positions.size)
            for step, tap in zip(steps[kept], taps[index[kept]], strict=True):
                total += tap * part[first + (step - low)]
            found[begin + phase : end : up] = total
    return found


# Transcribe speech by models that hear raw sound and write: long ones in parts cut in silence.


PART_SECONDS: Final = 30.0
"""Seconds of the longest part."""
_EARLIEST: Final = 2 / 3
"""A part ends after this share of it, where the audio is quietest."""
_QUIET_SECONDS: Final = 0.1
"""How long it is quiet there, at least."""


def transcribe_sounds(
    model: LoadedModel,
    samples: np.ndarray,
    form: SoundForm,
    *,
    timestamps: bool,
    progress: SoundProgress | None,
    part_seconds: float = PART_SECONDS,
) -> Transcription:
    """Return the text of samples f32 [N] at the rate of `form`, with a segment for each part.

    Without `timestamps` the whole is one segment. UsageError for a sound that is too short.
    """
    seconds = samples.size / form.rate
    require_frames(model, model.sound_transcriber().frame_count(samples.size), samples.size, form)
    note_unsupported(model.name, model.generation_config)
    segments: list[Segment] = []
    for start, end in quiet_parts(samples, form.rate, round(part_seconds * form.rate)):
        if progress is not None:
            progress(start / form.rate, seconds)
        tokens = _written(model, samples[start:end], form, len(segments))
        text = model.tokenizer.decode(tokens).strip() if model.has_tokenizer else ""
        first, last = (round(at / form.rate, 3) for at in (start, end))
        segments.append(Segment(first, last, text, tuple(tokens)))
    if progress is not None:
        progress(seconds, seconds)
    joined = " ".join(each.text for each in segments if each.text)
    if not timestamps:
        ids = tuple(token for each in segments for token in each.token_ids)
        segments = [Segment(0.0, round(seconds, 3), joined, ids)]
    return Transcription(joined, None, seconds, tuple(segments))


def quiet_parts(samples: np.ndarray, rate: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of parts of at most `most` samples, cut where it is quiet."""
    start, quiet = 0, max(1, round(_QUIET_SECONDS * rate))
    while samples.size - start > most:
        first = start + round(most * _EARLIEST)
        loud = np.square(samples[first : start + most].astype(np.float64))
        sums = np.concatenate([[0.0], np.cumsum(loud)])
        width = min(quiet, loud.size)
        position = int(np.argmin(sums[width:] - sums[:-width]))
        end = first + position + (width + 1) // 2
        yield start, end
        start = end
    yield start, samples.size


def _written(model: LoadedModel, samples: np.ndarray, form: SoundForm, stream: int) -> list[int]:
    """Return the tokens of one part, without the end token."""
    hearer, settings = model.sound_transcriber(), model.generation_config
    if hearer.frame_count(samples.size) < 1:
        return []
    samples = normalized(samples) if form.normalizes else samples
    # Programs are compiled for a size: one serves all sounds of up to a second, two, four, ...
    room = bucket(samples.size, form.rate)
    state = hearer.hear_sounds(np.pad(samples, (0, room - samples.size))[None], [samples.size])
    given, tokens = [first_token(model)], list[int]()
    most = configured_max_tokens(settings, len(given)) or hearer.context_length
    most = min(most, hearer.context_length - len(given))
    sampling = configured_sampling(settings)
    ends, suppression = model.eos_tokens, configured_suppression(settings)
    sampler = Sampler(sampling, stream)
    chain = ProcessorChain(built_in_processors(sampling, suppression, ends, len(given)), given)
    last = given[0]
    while len(tokens) < most:
        logits = hearer.write(np.array([[last]]), state)[0, -1]
        last = sampler.choose(chain(logits.copy()))
        if last in ends:
            break
        tokens.append(last)
        chain.append(last)
    return tokens


# Log-mel features of sound.


RATE: Final = 16_000
"""Samples of a second."""
HOP: Final = 160
"""Samples between two frames."""
_SIZE: Final = 400
"""Samples of a frame."""
_BINS: Final = _SIZE // 2 + 1
_BLOCK: Final = 300
"""Frames that are transformed together: their spectrum fits into the processor's cache."""
_SMALLEST: Final = 1e-10
_RANGE: Final = 8.0
_NOTE_HZ: Final = 200 / 3
_FIRST_LOG_HZ: Final = 1000.0
_LOG_STEP: Final = np.log(6.4) / 27


def log_mel(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the features f32 [mels, N // 160] of sound f32 [N] at 16 kHz.

    Frames of 400 samples in a Hann window, their power in `mels` bands of Slaney's scale up to
    8 kHz, its logarithm of base 10 within 8 of the largest one, scaled. At the ends the sound is
    mirrored. Computed in f64: quiet bands next to loud ones would be lost in f32.
    """
    # f32 until they are multiplied with the window: an hour takes 230 MB.
    padded = np.pad(samples, _SIZE // 2, mode="reflect")
    count = samples.size // HOP
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::HOP][:count]
    filters, logs = mel_filters(mels), np.empty((count, mels))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SIZE) / _SIZE)
    for start in range(0, count, _BLOCK):
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * window)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        logs[start : start + _BLOCK] = np.log10(np.maximum(power @ filters, _SMALLEST))
    lowest = logs.max(initial=-np.inf) - _RANGE
    np.maximum(logs, lowest, out=logs)
    logs += 4
    logs /= 4
    return logs.T.astype(np.float32)


def mel_filters(mels: int) -> np.ndarray:
    """Return the share of each frequency in each band, f64 [201, mels]: triangles of equal area."""
    top = _mel(np.array(RATE / 2))
    edges = _hertz(np.linspace(0, top, mels + 2))
    frequencies = np.linspace(0, RATE / 2, _BINS)[:, None]
    below = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    above = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(below, above)) * (2 / (edges[2:] - edges[:-2]))


def _mel(hertz: np.ndarray) -> np.ndarray:
    first = _FIRST_LOG_HZ / _NOTE_HZ
    high = first + np.log(np.maximum(hertz, _FIRST_LOG_HZ) / _FIRST_LOG_HZ) / _LOG_STEP
    return np.where(hertz < _FIRST_LOG_HZ, hertz / _NOTE_HZ, high)


def _hertz(mel: np.ndarray) -> np.ndarray:
    first = _FIRST_LOG_HZ / _NOTE_HZ
    high = _FIRST_LOG_HZ * np.exp(_LOG_STEP * np.maximum(mel - first, 0))
    return np.where(mel < first, mel * _NOTE_HZ, high)
