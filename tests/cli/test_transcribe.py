"""`gptrs transcribe`: text, subtitles and JSON are what Python says."""

from __future__ import annotations

import pytest

import gptrs as library
from gptrs.runtime.speech.subtitles import srt, vtt
from runtime.tiny_whisper import save_sound, save_tiny_whisper


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


def test_what_cannot_be_heard_is_refused(gptrs, folder):
    asked = ("--model", str(folder / "ear"), "--backend", "ref")
    result = gptrs("transcribe", str(folder / "ear" / "config.json"), *asked)
    assert result.code == 2
    assert "cannot be read as a WAV file" in result.err
    result = gptrs("transcribe", str(folder / "talk.wav"), *asked, "--language", "xx")
    assert result.code == 2
    assert "`xx` is no language" in result.err
    result = gptrs("transcribe", str(folder / "talk.wav"), "--model", "demo")
    assert result.code == 3
    assert "does not hear" in result.err
