"""`gptrs transcribe`: text, subtitles and JSON are what Python says."""

from __future__ import annotations

import pytest

import gptrs as library
from gptrs_runtime.speech.timestamps import srt, vtt
from models.ctc_models import save_ctc, sound
from models.sound_models import save_moonshine
from runtime.tiny_whisper import save_sound, save_tiny_whisper, save_wav


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and a sound."""
    folder = tmp_path_factory.mktemp("speech")
    save_tiny_whisper(folder / "ear")
    save_sound(folder / "talk.wav")
    return folder


def test_text_subtitles_and_json(gptrs, folder):
    model = library.load_model(folder / "ear", backend="ref")
    expected = library.transcribe(model, folder / "talk.wav", language="en")
    asked = ("transcribe", str(folder / "talk.wav"), "--model", str(folder / "ear"))
    asked += ("--language", "en", "--backend", "ref")
    result = gptrs(*asked)
    assert result.code == 0, result.err
    assert result.out == expected.text.strip() + "\n"
    assert "2.2 s of sound" in result.err
    assert gptrs(*asked, "--format", "srt").out == srt(expected.segments)
    assert gptrs(*asked, "--format", "vtt").out == vtt(expected.segments)
    fields = gptrs(*asked, "--json").json
    assert fields["text"] == expected.text
    assert [each["token_ids"] for each in fields["segments"]] == [
        list(each.token_ids) for each in expected.segments
    ]
    translated = library.transcribe(
        model, folder / "talk.wav", language="en", task="translate", timestamps=False
    )
    fields = gptrs(*asked, "--json", "--translate", "--no-timestamps").json
    assert fields["text"] == translated.text


def test_doubtful_windows_are_written_anew(gptrs, folder):
    asked = ("transcribe", str(folder / "talk.wav"), "--model", str(folder / "ear"))
    asked += ("--language", "en", "--backend", "ref")
    warmer = ("--temperature", "0,0.5", "--compression-ratio-threshold", "0.01", "--seed", "3")
    expected = library.transcribe(
        library.load_model(folder / "ear", backend="ref"),
        folder / "talk.wav",
        language="en",
        fallback=library.Fallback((0.0, 0.5), compression_ratio_threshold=0.01, seed=3),
    )
    fields = gptrs(*asked, *warmer, "--json").json
    assert fields["text"] == expected.text
    assert [each["temperature"] for each in fields["windows"]] == [0.5] * len(expected.windows)
    silent = ("--logprob-threshold", "0", "--no-speech-threshold", "0")
    fields = gptrs(*asked, *silent, "--json").json
    assert (fields["text"], fields["segments"]) == ("", [])
    assert all(each["is_silent"] for each in fields["windows"])
    assert "takes numbers with commas" in gptrs(*asked, "--temperature", "warm").err


def test_models_with_ctc(gptrs, folder):
    pytest.importorskip("torch", reason="the model is made by transformers")
    save_ctc(folder / "frames")
    save_wav(folder / "noise.wav", sound(9000), 16000)
    asked = ("transcribe", str(folder / "noise.wav"), "--model", str(folder / "frames"))
    asked += ("--backend", "ref")
    expected = library.transcribe(
        library.load_model(folder / "frames", backend="ref"), folder / "noise.wav"
    )
    fields = gptrs(*asked, "--json").json
    assert (fields["text"], fields["language"]) == (expected.text, None)
    assert len(fields["segments"]) == len(expected.segments) > 9
    assert gptrs(*asked, "--no-timestamps").out == expected.text + "\n"
    result = gptrs(*asked, "--translate")
    assert result.code == 2
    assert "the task `translate` was asked for" in result.err
    assert "transcribe" in gptrs("inspect", str(folder / "frames")).out


def test_models_that_hear_raw_sound(gptrs, folder):
    pytest.importorskip("torch", reason="the model is made by transformers")
    save_moonshine(folder / "moon")
    save_wav(folder / "short.wav", sound(9000), 16000)
    asked = ("transcribe", str(folder / "short.wav"), "--model", str(folder / "moon"))
    asked += ("--backend", "ref")
    expected = library.transcribe(
        library.load_model(folder / "moon", backend="ref"), folder / "short.wav"
    )
    assert gptrs(*asked).out == expected.text + "\n"
    fields = gptrs(*asked, "--json").json
    assert [each["token_ids"] for each in fields["segments"]] == [
        list(each.token_ids) for each in expected.segments
    ]
    assert gptrs(*asked, "--language", "en").code == 2


def test_what_cannot_be_heard_is_refused(gptrs, folder):
    asked = ("--model", str(folder / "ear"), "--backend", "ref")
    result = gptrs("transcribe", str(folder / "ear" / "config.json"), *asked)
    assert result.code == 2
    assert "cannot be read as a sound: it is none of WAV, MP3" in result.err
    result = gptrs("transcribe", str(folder / "nothing.wav"), *asked)
    assert result.code == 3
    assert (
        result.err == f"error: cannot open `{folder / 'nothing.wav'}`: No such file or directory\n"
    )
    result = gptrs("transcribe", str(folder / "talk.wav"), *asked, "--language", "xx")
    assert result.code == 2
    assert "`xx` is not a language" in result.err
    result = gptrs("transcribe", str(folder / "talk.wav"), "--model", "demo")
    assert result.code == 3
    assert "does not hear" in result.err
