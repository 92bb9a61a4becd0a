"""MP3, FLAC, Ogg, M4A, WebM, AAC and AIFF files are decoded to what they hold, whatever is read."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from gptrs.errors import MissingLibraryError, UsageError
from gptrs_runtime.speech.encoded_files import EncodedFile, container_of
from gptrs_runtime.speech.sound_files import decoded_sound

av = pytest.importorskip("av", reason="other sounds than WAV are decoded by PyAV")
RATE = 48_000
ENCODERS = {
    "mp3": "mp3", "flac": "flac", "ogg": "libopus", "ipod": "aac", "mp4": "aac", "webm": "libopus",
    "adts": "aac", "aiff": "pcm_s16be",
}  # fmt: skip
LOSSLESS = ("flac", "aiff")


def wave(seconds: float = 1.5) -> np.ndarray:
    return 0.5 * np.sin(np.arange(round(RATE * seconds)) ** 1.2 / 100)


def encoded(form: str, samples: np.ndarray, channels: int = 1) -> bytes:
    """A file of samples [N], or [N, 2], each at most 1."""
    file, layout = io.BytesIO(), "mono" if channels == 1 else "stereo"
    data = np.ascontiguousarray((samples * 32767).round().astype("<i2")).reshape(1, -1)
    with av.open(file, "w", format=form) as written:
        stream = written.add_stream(ENCODERS[form], rate=RATE)
        stream.layout = layout
        if form not in LOSSLESS:
            stream.bit_rate = 96_000
        frame = av.AudioFrame.from_ndarray(data, format="s16", layout=layout)
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            written.mux(packet)
    return file.getvalue()


def heard(data: bytes) -> np.ndarray:
    sound = decoded_sound(io.BytesIO(data), "the file", RATE)
    return sound.read(0, sound.size)


@pytest.mark.parametrize("form", ENCODERS)
def test_each_format_is_heard(form):
    found, samples = heard(encoded(form, wave())), wave()
    if form in LOSSLESS:
        np.testing.assert_allclose(found, samples, atol=2**-15)
        return
    # Encoders delay what they are given by a part of a packet, and some files do not say so.
    spectra = [np.fft.rfft(each, 1 << 18) for each in (found, samples)]
    delay = int(np.argmax(np.fft.irfft(spectra[0] * spectra[1].conj())))
    assert np.corrcoef(found[delay:][: samples.size - 3000], samples[:-3000])[0, 1] > 0.99
    assert 0 <= found.size - samples.size < 3000


def test_channels_are_averaged():
    pair = np.stack([wave(), -0.5 * wave()], axis=1)
    np.testing.assert_allclose(heard(encoded("flac", pair, 2)), wave() / 4, atol=2**-14)


@pytest.mark.parametrize("form", ["mp3", "webm", "flac"])
def test_any_order_of_reading_gives_the_same_samples(form):
    data = encoded(form, wave())
    file = io.BytesIO(data)
    opened = EncodedFile(file, container_of(file) or "", "", 100)
    whole = opened.read(0, opened.size)
    for start, stop in ((50_000, 60_000), (0, 7), (59_990, 60_010), (1, 2)):
        np.testing.assert_array_equal(opened.read(start, stop), whole[start:stop])
    assert opened.read(opened.size, opened.size).size == 0


def test_a_tag_before_and_one_after_the_sound_are_passed_over():
    data = encoded("mp3", wave())
    plain = data[10 + sum(byte << 7 * (3 - at) for at, byte in enumerate(data[6:10])) :]
    tag = b"ID3\x04\0\0" + bytes([0, 0, 1, 72]) + bytes(200)
    for file in (plain, tag + plain, plain + b"TAG" + bytes(125)):
        assert abs(heard(file).size - heard(data).size) <= 1152


def test_a_size_that_the_header_does_not_tell_is_counted():
    """An MP3 of a varying rate without its index, whose decoders guess how long it is."""
    silence = np.zeros(RATE * 2)
    data = encoded("mp3", np.concatenate([silence, wave(3.0), silence]))
    start = data.index(b"Info" if b"Info" in data else b"Xing")
    first = data.index(data[start - 21 : start - 19], start)
    assert 7 * RATE <= heard(data[first:]).size <= 7 * RATE + 3000


def test_what_is_cut_or_damaged_is_heard_as_far_as_it_goes():
    data = encoded("mp3", wave())
    damaged = data[: len(data) // 2] + bytes(900) + data[len(data) // 2 :]
    assert heard(damaged).size > RATE
    data = encoded("webm", wave())
    cut = heard(data[: len(data) // 2])
    assert 0.3 * RATE < cut.size < 1.1 * RATE
    data = encoded("flac", wave())
    broken = bytearray(data)
    broken[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    assert heard(bytes(broken)).size > RATE


HEADS = (
    b"fLaC", b"OggS", b"ID3\x04\0\0\0\0\0\0", b"\0\0\0\x18ftypM4A ", b"\x1aE\xdf\xa3",
    b"FORM\0\0\0\x20AIFF", b"\xff\xfb\x90\x00",
)  # fmt: skip
RESTS = (b"", bytes(400), b"\xff" * 400, b"#EXTM3U\nfile:///etc/passwd\n")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rest", RESTS)
def test_what_begins_as_a_sound_and_is_none_is_one_error(head, rest):
    with pytest.raises(UsageError, match=r"^the file (cannot be read as a sound: |holds no sound)"):
        heard(head + rest)


def test_a_long_sound_is_refused_before_all_of_it_is_decoded(monkeypatch):
    data = encoded("flac", np.zeros(RATE * 20))
    samples, read = EncodedFile._samples, list[int]()

    def counted(self, frame):
        read.append(frame.samples)
        return samples(self, frame)

    monkeypatch.setattr(EncodedFile, "_samples", counted)
    with pytest.raises(UsageError, match="longer than"):
        decoded_sound(io.BytesIO(data), "the file", RATE, most_seconds=2)
    assert sum(read) < 3 * RATE


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    data = encoded("flac", wave())
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibraryError, match="needs PyAV"):
        heard(data)
