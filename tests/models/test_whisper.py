"""Whisper agrees with transformers: features, logits, tokens of sounds of any length."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.speech import sound_files
from gptrs_runtime.speech.sound_files import LogMel, Sound, log_mel, read_sound, resampled
from gptrs_runtime.speech.timestamps import srt, vtt
from models.llama_support import assert_close
from runtime.tiny_whisper import save_wav
from support.tiny_models import tiny

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

SETTINGS = {
    "vocab_size": 90,
    "num_mel_bins": 80,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 40,
    "max_source_positions": 50,
    "max_target_positions": 24,
    "decoder_start_token_id": 31,
    "eos_token_id": 30,
    "pad_token_id": 30,
    "bos_token_id": 30,
    "begin_suppress_tokens": [3, 30],
}
GENERATION = {
    "decoder_start_token_id": 31,
    "eos_token_id": 30,
    "pad_token_id": 30,
    "bos_token_id": 30,
    "max_length": 24,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 32, "<|de|>": 33},
    "task_to_id": {"translate": 34, "transcribe": 35},
    "no_timestamps_token_id": 37,
    "max_initial_timestamp_index": 20,
    "suppress_tokens": [5, 31, 32, 33, 34, 35, 36],
    "begin_suppress_tokens": [3, 30],
    "return_timestamps": True,
    "prev_sot_token_id": 36,
}
"""One second is a window: 50 steps of times, tokens 38 to 88."""


@pytest.fixture(
    scope="module",
    params=[0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))],
)
def folder(request, tmp_path_factory) -> Path:
    """A model with random weights."""
    return save_whisper(tmp_path_factory.mktemp("whisper") / "m", request.param)


def save_whisper(path: Path, seed: int) -> Path:
    """Save a model with random weights."""
    tiny(path, "WhisperForConditionalGeneration", SETTINGS, seed=seed, redrawn=(0.35, 0.4))
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    return path


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Tones that change, and noise."""
    at = np.arange(int(seconds * 16000)) / 16000
    noise = np.random.default_rng(seed).standard_normal(at.size) * 0.02
    return (np.sin(800 * at * (1 + np.sin(3 * at))) * 0.4 + noise).astype(np.float32)


def reference(folder):
    """The model as transformers loads it."""
    kind = transformers.WhisperForConditionalGeneration
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("setting", [{"hop_length": 320}, {"n_fft": 512}, {"dither": 1.0}])
@pytest.mark.parametrize("nested", [False, True])
def test_features_of_other_settings_are_refused(folder, tmp_path, setting, nested):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    usual = {"feature_extractor_type": "WhisperFeatureExtractor", "hop_length": 160}
    own, processor = usual | setting, {"feature_extractor": usual | setting}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(usual if nested else own))
    (tmp_path / "processor_config.json").write_text(json.dumps(processor if nested else {}))
    (name,) = setting
    with pytest.raises(ModelError, match=f"`{name}` of the feature extractor is supported as"):
        gptrs.transcribe(gptrs.load_model(tmp_path, backend="ref"), sound(0.2))


@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(mels):
    samples = sound(1.7)
    samples[9000:14000] = 0
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    found = extractor(samples, sampling_rate=16000, padding="longest", return_tensors="np")
    ours = log_mel(samples, mels)
    assert np.abs(ours - found["input_features"][0]).max() <= 1e-4


def test_logits(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name).transcriber()
    features = np.random.default_rng(1).standard_normal((2, 80, 100)).astype(np.float32)
    text = np.random.default_rng(2).integers(0, 90, (2, 9))
    with torch.no_grad():
        theirs = reference(folder)(
            torch.from_numpy(features), decoder_input_ids=torch.from_numpy(text)
        ).logits.numpy()
    state = model.hear(features)
    parts = [model.write(part, state) for part in (text[:, :4], text[:, 4:5], text[:, 5:])]
    assert_close(np.concatenate(parts, axis=1), theirs)


def test_long_sounds_are_heard_as_transformers_does(folder, backend_name):
    samples = sound(4.3)
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    found = extractor(samples, sampling_rate=16000, padding="longest", return_tensors="pt")
    with torch.no_grad():
        theirs = reference(folder).generate(
            found["input_features"],
            language="de",
            task="translate",
            return_timestamps=True,
            return_segments=True,
            condition_on_prev_tokens=False,
        )["segments"][0]
    model = gptrs.load_model(folder, backend=backend_name)
    ours = gptrs.transcribe(model, samples, language="de", task="translate")
    assert ours.language == "de"
    assert [list(each.token_ids) for each in ours.segments] == [
        each["tokens"].tolist() for each in theirs
    ]
    times = [(float(each["start"]), float(each["end"])) for each in theirs]
    assert np.allclose([(each.start, each.end) for each in ours.segments], times, atol=1e-3)


def test_a_language_is_told_and_tasks_are_known(folder):
    model = gptrs.load_model(folder, backend="ref")
    samples = sound(0.8)
    features = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1)(
        samples, sampling_rate=16000, return_tensors="pt"
    )["input_features"]
    told = reference(folder).detect_language(features)[0].item()
    result = gptrs.transcribe(model, samples)
    assert result.language == {32: "en", 33: "de"}[told]
    assert abs(result.seconds - 0.8) < 1e-3
    with pytest.raises(UsageError, match="`fr` is not a language") as caught:
        gptrs.transcribe(model, samples, language="fr")
    assert "`en`" in str(caught.value.hint)
    whole = gptrs.transcribe(model, samples, language="en", timestamps=False)
    assert len(whole.segments) == 1
    with pytest.raises(UsageError, match=r"samples of floats \[N\]"):
        gptrs.transcribe(model, np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match="cannot generate text"):
        gptrs.generate(model, [1, 2])


def test_long_sounds_take_little_memory():
    minute = sound(60.0).astype(np.float64)

    def own(start, stop):
        return minute[np.arange(start, stop) % minute.size]

    tracemalloc.start()
    try:
        features = LogMel(Sound(own, 8 * minute.size, 16_000, 16_000), 80)
        features.window(features.count - 3000, 3000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert features.count == 48_000
    assert peak < 48_000 * 80 * 8  # less than the logarithms of all frames


def samples_of(path):
    with read_sound(path, 16000) as read:
        return read.read(0, read.size)


@pytest.mark.whole
@pytest.mark.parametrize("size", [1, 2, 150, 399, 48_000, 60_480, 96_123])
def test_windows_of_long_sounds_have_the_bits_of_all_features(monkeypatch, size):
    samples = sound(6.1)[:size]
    whole = log_mel(np.pad(samples, (0, max(0, 48_000 - size))), 80)
    monkeypatch.setattr(sound_files, "_LOGS_KEPT", 2)
    monkeypatch.setattr(sound_files, "_SAMPLES_AT_ONCE", 7_001)
    features = LogMel(Sound.of(samples), 80, 300)
    assert features.count == whole.shape[1]
    for frame in (0, 7, 299, 300, 450):
        found = features.window(frame, 300)
        wanted = whole[:, frame : frame + 300]
        np.testing.assert_array_equal(found[:, : wanted.shape[1]], wanted)
        assert not found[:, wanted.shape[1] :].any()


@pytest.mark.whole
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_each_width(tmp_path, width):
    samples = sound(0.1)
    stereo = np.stack([samples, samples * 0.5], axis=1).ravel()
    path = save_wav(tmp_path / "a.wav", stereo, 16000, width, channels=2)
    assert np.abs(samples_of(path) - samples * 0.75).max() <= 1.1 * 2.0 ** (1 - 8 * width)


def wav_bytes(code, bits, data, *, channels=1, frame=None, name=b"RIFF", sizes=None, before=b""):
    """A WAV file of any format; `sizes` are those of the file and of the data."""
    whole, size = sizes or (0, len(data))
    frame = frame or bits // 8 * channels
    form = struct.pack("<HHIIHH", min(code, 0xFFFE), channels, 16000, 16000 * frame, frame, bits)
    if code > 0xFFFF:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHIH", 22, bits, 4, code - 0x10000) + guid
    parts = (name, struct.pack("<I", whole), b"WAVE", before, b"fmt ", struct.pack("<I", len(form)))
    return b"".join((*parts, form, b"data", struct.pack("<I", size), data))


EXTENDED = 0x10000
SAMPLES = np.array([0.5, -0.25, 2.0, 0.0], np.float32)
SHORTS = np.array([0.5, -0.25, 0.125, 0.0], np.float32)


def wide(samples, width):
    scaled = (samples.astype(np.float64) * 2.0**31).astype("<i4").view(np.uint8).reshape(-1, 4)
    return scaled[:, 4 - width :].tobytes()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (wav_bytes(3, 32, SAMPLES.tobytes()), SAMPLES),
        (wav_bytes(3, 64, SAMPLES.astype("<f8").tobytes()), SAMPLES),
        (wav_bytes(EXTENDED + 3, 32, SAMPLES.tobytes()), SAMPLES),
        (wav_bytes(EXTENDED + 1, 24, wide(SHORTS, 3)), SHORTS),
        (wav_bytes(EXTENDED + 1, 16, wide(SHORTS, 2), channels=2), SHORTS.reshape(2, 2).mean(1)),
        (wav_bytes(1, 16, wide(SHORTS, 2), sizes=(0xFFFFFFFF, 0xFFFFFFFF)), SHORTS),
        (wav_bytes(1, 16, wide(SHORTS, 2), sizes=(0, 0)), SHORTS),
        (wav_bytes(1, 16, wide(SHORTS, 2) + b"x", sizes=(0, 99)), SHORTS),
        (wav_bytes(1, 16, wide(SHORTS, 2), before=b"LIST\3\0\0\0abc\0"), SHORTS),
        (
            wav_bytes(
                1, 16, wide(SHORTS, 2) + b"LIST", name=b"RF64", sizes=(0xFFFFFFFF, 0xFFFFFFFF),
                before=b"ds64" + struct.pack("<IQQ", 16, 0, 8),
            ),
            SHORTS,
        ),
    ],
    ids=[
        "floats", "wide floats", "extensible floats", "extensible integers", "channels", "a pipe",
        "an unfinished header", "cut", "odd chunks", "64 bits",
    ],
)  # fmt: skip
def test_wav_files_of_other_headers(tmp_path, content, wanted):
    (tmp_path / "a.wav").write_bytes(content)
    np.testing.assert_array_equal(samples_of(tmp_path / "a.wav"), wanted)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (wav_bytes(7, 8, b"12"), "8 bits of the format 0x0007"),
        (wav_bytes(1, 24, b"1234" * 3, frame=4), "1 channels of 24 bits do not fill frames of 4"),
        (wav_bytes(1, 16, b"12", channels=0, frame=2), "0 channels"),
        (wav_bytes(3, 32, np.array([np.nan], "<f4").tobytes()), "not finite numbers"),
        (wav_bytes(3, 64, np.array([1e300], "<f8").tobytes()), "not finite numbers"),
        (wav_bytes(1, 16, b"12", before=b"data\0\0\0\0"), "before their format"),
    ],
)
def test_wav_files_of_other_samples_are_refused(tmp_path, content, problem):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        samples_of(tmp_path / "a.wav")


@pytest.mark.parametrize("rate", [7919, 8000, 16000, 22050, 44100, 48000])
def test_sounds_are_read_in_blocks_with_the_same_bits(tmp_path, monkeypatch, rate):
    path = save_wav(tmp_path / "a.wav", sound(0.3), rate, 2, channels=1)
    whole = samples_of(path)
    monkeypatch.setattr(sound_files, "_SAMPLES_AT_ONCE", 500)
    np.testing.assert_array_equal(samples_of(path), whole)


def test_each_sample_is_read_once_and_in_order():
    """Decoders of files would begin again for one that lies before."""
    read = []

    def own(start, stop):
        read.append((start, stop))
        return np.sin(np.arange(start, stop))

    sound = Sound(own, 1_000_000, 44_100, 16_000)
    parts = [sound.read(at, at + 60_000) for at in range(0, sound.size, 60_000)]
    assert [start for start, _ in read] == [0, *(stop for _, stop in read[:-1])]
    assert len(read) > 2
    assert read[-1][1] == 1_000_000
    whole = resampled(np.sin(np.arange(1_000_000)), 44_100, 16_000)
    assert np.array_equal(np.concatenate(parts), whole.astype(np.float32))


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1000), (768_000, 1)])
def test_sounds_of_many_channels_or_samples_take_little_memory(tmp_path, rate, channels):
    file = save_wav(tmp_path / "a.wav", np.zeros(4_000_000), rate, 1, channels=channels)
    with read_sound(file, 16_000) as sound:
        tracemalloc.start()
        try:
            assert not sound.read(0, sound.size).any()
            assert tracemalloc.get_traced_memory()[1] < 25_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.whole
@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_resampling_is_that_of_scipy(rate):
    signal = pytest.importorskip("scipy.signal", reason="the reference of resampling")
    samples, common = sound(0.2).astype(np.float64), int(np.gcd(rate, 16000))
    expected = signal.resample_poly(samples, 16000 // common, rate // common)
    assert np.abs(resampled(samples, rate, 16000) - expected).max() < 1e-9


def test_other_files_are_refused_with_what_to_do(tmp_path):
    for name, content in (("a.amr", b"#!AMR\n"), ("a.wav", b"RIFF1234WAVE"), ("b.wav", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="cannot be read as a sound: it ") as caught:
            samples_of(tmp_path / name)
        assert "ffmpeg" in str(caught.value.hint)
    with pytest.raises(ModelError, match="cannot open"):
        samples_of(tmp_path / "none.wav")
    with pytest.raises(UsageError, match="holds no sound"):
        samples_of(save_wav(tmp_path / "c.wav", np.zeros(0), 16000))


def test_subtitles():
    segments = [
        gptrs.Segment(0.0, 1.5, " Hello <you>", (1,)),
        gptrs.Segment(3661.25, 3662.0, " there", (2,)),
    ]
    assert srt(segments) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello <you>\n\n2\n01:01:01,250 --> 01:01:02,000\nthere\n"
    )
    assert vtt(segments).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello &lt;you>\n")
