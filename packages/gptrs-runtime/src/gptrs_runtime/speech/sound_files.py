"""Audio from files, as one channel at a requested sampling rate."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.errors import UsageError
from gptrs.memory_cache import MemoryCache
from gptrs.progress import SoundProgress
from gptrs.quoting import quoted
from gptrs_runtime.generation.logits_processors import ProcessorChain, built_in_processors
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_rules,
    configured_sampling,
    note_ignored,
)
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.source_cache import first_token
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription
from gptrs_runtime.speech.encoded_files import FORMATS, EncodedFile, container_of
from gptrs_runtime.speech.timestamps import SoundForm, normalized, require_frames
from gptrs_runtime.speech.wave_files import SoundFileError, WaveFile

_CONVERT: Final = "convert it, such as with `ffmpeg -i FILE -ar 16000 -ac 1 FILE.wav`"
_MOST_SECONDS: Final = 24 * 3600
_SENT_SECONDS: Final = 1800
_SENT_BYTES_PER_SECOND: Final = 4_000
"""Of speech in MP3 or Opus, 32 kbit/s."""
_RATES: Final = (1_000, 768_000)
"""Samples a second of the sounds that are read."""
_MOST_PHASES: Final = 50_000
"""Most phases of a filter from one rate to another, which has 20 numbers for each."""
_SAMPLES_AT_ONCE: Final = 1 << 18
"""Samples, of all channels, that are read and converted at once."""
_SAMPLES_OF_PHASES: Final = 4096
"""About as many samples of several phases are computed together."""
_BLOCKS_KEPT: Final = 4
_LOBES: Final = 10
_BETA: Final = 5.0


class Sound:
    """A sound at `rate` samples a second, as f32 [size]: computed in blocks, when it is read.

    `own` gives f64 samples of `own_size` at `own_rate`, from a position to another. Other rates are
    made by a polyphase filter: a sinc of 10 lobes on each side in a Kaiser window of 5, as
    `scipy.signal.resample_poly` does.
    """

    def __init__(
        self,
        own: Callable[[int, int], np.ndarray],
        own_size: int,
        own_rate: int,
        rate: int,
        dtype: type[np.floating] = np.float32,
    ) -> None:
        common = math.gcd(own_rate, rate)
        self._up, self._down = rate // common, own_rate // common
        self._own, self._own_size, self._dtype = own, own_size, dtype
        most = max(self._up, self._down)
        self._half = 0 if self._up == self._down else _LOBES * most
        self._reach = self._half // self._up + 1
        taps = np.sinc(np.arange(-self._half, self._half + 1) / most)
        taps *= np.kaiser(2 * self._half + 1, _BETA)
        self._taps = taps * (self._up / taps.sum())
        self.size = -(-own_size * self._up // self._down)
        # In blocks of whole turns of the phases: at once, an hour would take 2 GB of f64.
        self._block = max(1, _SAMPLES_AT_ONCE // self._up) * self._up
        self._blocks = MemoryCache[int, np.ndarray](_BLOCKS_KEPT)
        self._last = 0, np.zeros(0)
        """The last own samples, and their position."""

    @classmethod
    def of(cls, samples: np.ndarray) -> Sound:
        """Return samples f32 [N] as they are."""
        return cls(lambda start, stop: samples[start:stop].astype(np.float64), samples.size, 1, 1)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the samples from a position to another, as far as there are any."""
        start, stop = max(0, start), min(stop, self.size)
        numbers = range(start // self._block, -(-stop // self._block))
        parts = [self._kept(number) for number in numbers if start < stop]
        if not parts:
            return np.zeros(0, self._dtype)
        first = numbers[0] * self._block
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole[start - first : stop - first]

    def _kept(self, number: int) -> np.ndarray:
        """Return the samples of a block; the last few are kept, since windows overlap."""
        return self._blocks.find_or_make(number, lambda _: self._computed(number)).value

    def _computed(self, number: int) -> np.ndarray:
        begin = number * self._block
        end = min(self.size, begin + self._block)
        # Of high rates, a block has many more samples of its own.
        step = max(1, _SAMPLES_AT_ONCE // max(self._up, self._down)) * self._up
        parts = [self._converted(at, min(end, at + step)) for at in range(begin, end, step)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _own_samples(self, start: int, stop: int) -> np.ndarray:
        """Return own samples. Parts overlap, and a decoder would begin again for those before."""
        first, known = self._last
        if first <= start <= first + known.size <= stop:
            more = self._own(first + known.size, stop)
            samples = np.concatenate([known[start - first :], more])
        else:
            samples = self._own(start, stop)
        tail = samples[-2 * self._reach - 1 :].copy()
        self._last = stop - tail.size, tail
        return samples

    def _converted(self, begin: int, end: int) -> np.ndarray:
        """Return the samples from a position to another, at the wanted rate."""
        up, down, half, reach = self._up, self._down, self._half, self._reach
        turns = -(-(end - begin) // up)
        low, high = begin * down // up - reach, (begin // up + turns) * down + reach + 1
        part = np.zeros(high - low)
        inner = slice(max(low, 0), min(high, self._own_size))
        part[inner.start - low : inner.stop - low] = self._own_samples(inner.start, inner.stop)
        if up == down:
            return part[reach : reach + end - begin].astype(self._dtype)
        found = np.empty((turns, up), self._dtype)
        # Many phases at once: of odd rates, there are thousands with a few samples each.
        count = max(1, _SAMPLES_OF_PHASES // turns)
        for phase in range(0, up, count):
            positions = np.arange(phase, min(up, phase + count)) * down  # in the upsampled signal
            first = positions // up
            taps = half + positions - first * up
            places = (first + reach)[:, None] + down * np.arange(turns)
            total = np.zeros(places.shape)
            for step in range(-reach, reach + 1):
                index = taps - step * up
                kept = (index >= 0) & (index < self._taps.size)
                tap = np.where(kept, self._taps[np.where(kept, index, 0)], 0)
                total += tap[:, None] * part[places + step]
            found[:, phase : phase + count] = total.T
        return found.reshape(-1)[: end - begin]


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return f64 samples at another rate; see `Sound`."""
    sound = Sound(lambda start, stop: samples[start:stop], samples.size, rate, wanted, np.float64)
    return sound.read(0, sound.size)


@contextmanager
def read_sound(path: str | Path, rate: int) -> Generator[Sound]:
    """Scope in which the sound of a file is read, the mean of its channels.

    ModelError for a file that cannot be opened; UsageError for one that is damaged, empty, or of
    another format: WAV files hold integers of 8, 16, 24 or 32 bits, in [-1, 1], or floats; those
    of `encoded_files.FORMATS` raise MissingLibraryError without PyAV.
    """
    shown = quoted(str(path), 200)
    with os.fdopen(open_regular(resolved(path)), "rb") as opened:
        yield decoded_sound(opened, shown, rate)


def sent_seconds(nbytes: int) -> int:
    """Return the most seconds of sound in a file of so many bytes, which a client may have sent."""
    return max(_SENT_SECONDS, nbytes // _SENT_BYTES_PER_SECOND)


def decoded_sound(
    opened: IO[bytes], shown: str, rate: int, most_seconds: int = _MOST_SECONDS
) -> Sound:
    """Return the sound in a file, which errors call `shown`; errors as of `read_sound`.

    It reads the file, which must stay open. UsageError, too, for more than `most_seconds`.
    """
    with _reading(shown):
        file = _samples_of(opened, shown, most_seconds)
    if file.size > most_seconds * file.rate:
        told = f"{shown} is longer than {most_seconds / 3600:g} hours"
        raise UsageError(told, hint="cut it into parts")
    # Of odd rates the filter is as long as they are high, and slow ones become much longer.
    phases = max(file.rate, rate) // math.gcd(file.rate, rate)
    if not _RATES[0] <= file.rate <= _RATES[1] or phases > _MOST_PHASES:
        told = f"{shown} has {file.rate} samples a second"
        raise UsageError(told, hint=_CONVERT)
    if not file.size:
        raise UsageError(f"{shown} holds no sound")

    def mono(start: int, stop: int) -> np.ndarray:
        # A sound of a thousand channels takes a thousand times the memory of its mean.
        step = max(1, _SAMPLES_AT_ONCE // file.channels)
        with _reading(shown):
            ends = ((at, min(stop, at + step)) for at in range(start, stop, step))
            parts = [file.read(*each).mean(axis=1) for each in ends]
        return np.concatenate([np.zeros(0), *parts])

    return Sound(mono, file.size, file.rate, rate)


def _samples_of(opened: IO[bytes], shown: str, most_seconds: int) -> WaveFile | EncodedFile:
    container = container_of(opened)
    if container is not None:
        return EncodedFile(opened, container, shown, most_seconds)
    opened.seek(0)
    if opened.read(4) not in (b"RIFF", b"RF64"):
        raise SoundFileError(f"it is none of {', '.join(('WAV', *FORMATS))}")
    opened.seek(0)
    return WaveFile(opened)


@contextmanager
def _reading(shown: str) -> Generator[None]:
    try:
        yield
    except (OSError, EOFError, SoundFileError) as problem:
        told = f"{shown} cannot be read as a sound: {str(problem) or 'it ends early'}"
        raise UsageError(told, hint=_CONVERT) from None


# Transcribe speech by models that hear raw sound and write: long ones in parts cut in silence.


PART_SECONDS: Final = 30.0
"""Seconds of the longest part."""
_EARLIEST: Final = 2 / 3
"""A part ends after this share of it, where the audio is quietest."""
_QUIET_SECONDS: Final = 0.1
"""How long it is quiet there, at least."""


def transcribe_sounds(
    model: LoadedModel,
    sound: Sound,
    form: SoundForm,
    *,
    timestamps: bool,
    progress: SoundProgress | None,
    part_seconds: float = PART_SECONDS,
) -> Transcription:
    """Return the text of a sound at the rate of `form`, with a segment for each part.

    Without `timestamps` the whole is one segment. UsageError for a sound that is too short.
    """
    seconds = sound.size / form.rate
    require_frames(model, model.sound_transcriber().frame_count(sound.size), sound.size, form)
    note_ignored(model.name, model.generation_config, model.sound_transcriber().vocab_size)
    segments: list[Segment] = []
    for start, end in quiet_parts(sound, form.rate, round(part_seconds * form.rate)):
        if progress is not None:
            progress(start / form.rate, seconds)
        tokens = _written(model, sound.read(start, end), form, len(segments))
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


def quiet_parts(sound: Sound, rate: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of parts of at most `most` samples, cut where it is quiet."""
    start, quiet = 0, max(1, round(_QUIET_SECONDS * rate))
    while sound.size - start > most:
        first = start + round(most * _EARLIEST)
        loud = np.square(sound.read(first, start + most).astype(np.float64))
        sums = np.concatenate([[0.0], np.cumsum(loud)])
        width = min(quiet, loud.size)
        position = int(np.argmin(sums[width:] - sums[:-width]))
        end = first + position + (width + 1) // 2
        yield start, end
        start = end
    yield start, sound.size


def _written(model: LoadedModel, samples: np.ndarray, form: SoundForm, stream: int) -> list[int]:
    """Return the tokens of one part, without the end token."""
    hearer, settings = model.sound_transcriber(), model.generation_config
    if hearer.frame_count(samples.size) < 1:
        return []
    samples = normalized(samples) if form.normalizes else samples
    # Programs are compiled for a size: one serves all sounds of up to a second, two, four, ...
    room = bucket(samples.size, form.rate)
    state = hearer.hear_sounds(np.pad(samples, (0, room - samples.size))[None], [samples.size])
    given, tokens = [first_token(model, hearer.vocab_size)], list[int]()
    most = configured_max_tokens(settings, len(given)) or hearer.context_length
    most = min(most, hearer.context_length - len(given))
    sampling = configured_sampling(settings)
    ends, rules = model.eos_tokens, configured_rules(settings)
    sampler = Sampler(sampling, stream)
    processors = built_in_processors(sampling, rules, ends, len(given), count=most)
    chain = ProcessorChain(processors, given)
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
_LOGS_KEPT: Final = 100
"""Blocks that are kept: those of 5 minutes, 19 MB for 80 bands."""
_SMALLEST: Final = 1e-10
_RANGE: Final = 8.0
_NOTE_HZ: Final = 200 / 3
_FIRST_LOG_HZ: Final = 1000.0
_LOG_STEP: Final = np.log(6.4) / 27


def log_mel(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the features f32 [mels, N // 160] of sound f32 [N] at 16 kHz; see `LogMel`."""
    features = LogMel(Sound.of(samples), mels)
    return features.window(0, features.count)


class LogMel:
    """The features of a sound at 16 kHz, which with `least` frames ends in silence.

    Frames of 400 samples in a Hann window, their power in `mels` bands of Slaney's scale up to
    8 kHz, its logarithm of base 10 within 8 of the largest one, scaled. At the ends the sound is
    mirrored. Computed in f64: quiet bands next to loud ones would be lost in f32.
    """

    def __init__(
        self,
        sound: Sound,
        mels: int,
        least: int = 0,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Find the loudest frame; `progress` is called every few minutes of sound."""
        self._sound = sound
        self._size = max(sound.size, least * HOP)
        self.count = self._size // HOP
        self._mels, self._filters = mels, mel_filters(mels)
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SIZE) / _SIZE)
        self._blocks = MemoryCache[int, np.ndarray](_LOGS_KEPT)
        loudest = -np.inf
        # Twice over a long sound: all logarithms of an hour would take 230 MB.
        for number in range(-(-self.count // _BLOCK)):
            if number % _LOGS_KEPT == _LOGS_KEPT - 1:
                progress()
            loudest = max(loudest, self._logs(number).max(initial=-np.inf))
        self._lowest = loudest - _RANGE

    def window(self, frame: int, frames: int) -> np.ndarray:
        """Return the features f32 [mels, frames] from `frame` on, with zeros after the end."""
        found = np.zeros((self._mels, frames), np.float32)
        end = min(frame + frames, self.count)
        for number in range(frame // _BLOCK, -(-end // _BLOCK) if end > frame else 0):
            begin = number * _BLOCK
            logs = np.maximum(self._logs(number), self._lowest)
            logs = (logs + 4) / 4
            first, last = max(frame, begin), min(end, begin + _BLOCK)
            found[:, first - frame : last - frame] = logs[first - begin : last - begin].T
        return found

    def _logs(self, number: int) -> np.ndarray:
        """Return the logarithms of a block of frames, f64 [_BLOCK or fewer, mels]."""
        return self._blocks.find_or_make(number, lambda _: self._computed(number)).value

    def _computed(self, number: int) -> np.ndarray:
        count = min(_BLOCK, self.count - number * _BLOCK)
        samples = self._mirrored(number * _BLOCK * HOP - _SIZE // 2, (count - 1) * HOP + _SIZE)
        frames = np.lib.stride_tricks.sliding_window_view(samples, _SIZE)[::HOP]
        spectrum = np.fft.rfft(frames * self._window)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        return np.log10(np.maximum(power @ self._filters, _SMALLEST))

    def _mirrored(self, start: int, count: int) -> np.ndarray:
        """Return samples f32 from a position on, which may lie outside of the sound."""
        positions = np.arange(start, start + count)
        turn = max(1, 2 * (self._size - 1))
        positions = positions % turn
        positions = np.minimum(positions, turn - positions) if self._size > 1 else 0 * positions
        low, high = int(positions.min()), int(positions.max()) + 1
        part = np.zeros(high - low, np.float32)
        own = self._sound.read(low, high)
        part[: own.size] = own
        return part[positions - low]


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
