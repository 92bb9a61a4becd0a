"""Transcriptions and translations of sounds that clients send as forms."""

from __future__ import annotations

import io
import json
import sys
import threading
import time

import httpx
import pytest

import gptrs
from gptrs_runtime.load import load_model
from gptrs_runtime.speech.sound_files import sent_seconds
from gptrs_runtime.speech.timestamps import srt, vtt
from gptrs_serve import problems
from gptrs_serve.app import Access
from gptrs_serve.dialects import audio
from gptrs_serve.problems import RequestError
from runtime.tiny_whisper import save_sound, save_tiny_whisper
from serve.clients import http, leaving
from serve.conftest import serving

PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return load_model(save_tiny_whisper(tmp_path_factory.mktemp("audio") / "w"), backend="ref")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return save_sound(tmp_path_factory.mktemp("sounds") / "a.wav")


@pytest.fixture(scope="module")
def address(whisper):
    with serving({"whisper": whisper}, Access(origins=["https://known.example"])) as (address, _):
        yield address


def post(address, sound, path=PATH, headers=None, **fields):
    files = {"file": ("a.wav", sound if isinstance(sound, bytes) else sound.read_bytes())}
    return http.post(f"{address}{path}", data=fields, files=files, headers=headers)


def test_each_format_has_what_python_finds(address, whisper, sound):
    expected = gptrs.transcribe(whisper, sound, language="en")
    found = post(address, sound, language="en").json()
    assert found["text"] == expected.text.strip()
    assert found["usage"] == {"type": "duration", "seconds": expected.seconds}
    assert post(address, sound, language="en", response_format="text").text == (
        expected.text.strip() + "\n"
    )
    for name, write in (("srt", srt), ("vtt", vtt)):
        made = post(address, sound, language="en", response_format=name)
        assert made.text == write(expected.segments)
    verbose = post(
        address, sound, language="en", response_format="verbose_json", model="whisper",
        **{"timestamp_granularities[]": "segment"},
    ).json()  # fmt: skip
    assert (verbose["task"], verbose["language"]) == ("transcribe", "en")
    assert verbose["duration"] == expected.seconds
    found = verbose["segments"]
    assert len(found) == len(expected.segments) > 1
    for made, segment in zip(found, expected.segments, strict=True):
        assert (made["start"], made["end"], made["text"]) == (
            segment.start, segment.end, segment.text,
        )  # fmt: skip
        assert made["avg_logprob"] in [window.avg_logprob for window in expected.windows]


def test_a_translation_is_another_task(address, whisper, sound):
    expected = gptrs.transcribe(whisper, sound, task="translate")
    found = post(address, sound, "/v1/audio/translations").json()
    assert found["text"] == expected.text.strip()


def test_a_stream_has_each_segment_and_the_whole(address, whisper, sound):
    expected = gptrs.transcribe(whisper, sound)
    blocks = post(address, sound, stream="true").text.strip().split("\n\n")
    found = [json.loads(block.split("data: ")[1]) for block in blocks]
    assert [event["type"] for event in found] == [
        *["transcript.text.delta"] * len(expected.segments), "transcript.text.done",
    ]  # fmt: skip
    joined = "".join(event["delta"] for event in found[:-1])
    assert joined == found[-1]["text"] == expected.text.strip()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": "a"}, "prompt", "the transcription uses only the audio"),
        ({"response_format": "xml"}, "response_format", "Invalid enum value 'xml'"),
        ({"temperature": "2"}, "temperature", "Expected `float` <= 1.0"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[0]", "'word'"),
        ({"language": "xx"}, "language", "xx"),
        ({"stream": "true", "response_format": "vtt"}, "response_format", "cannot be streamed"),
        ({"language": ["en", "de"]}, "language", "two fields called `language`"),
        ({"language": "en", "language[]": "de"}, "language", "two fields called `language`"),
        ({"language[]": "en", "language": "de"}, "language", "two fields called `language`"),
    ],
)
def test_refusals(address, sound, fields, param, message):
    answer = post(address, sound, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def header(rate: int, size: int) -> bytes:
    """The beginning of a WAV file of 8 bits."""
    parts = (b"RIFF", 36 + size, b"WAVEfmt ", 16, (1, 2), (1, 2), rate, rate, (1, 2), (8, 2),
             b"data", size)  # fmt: skip
    return b"".join(
        part if isinstance(part, bytes)
        else part[0].to_bytes(part[1], "little") if isinstance(part, tuple)
        else part.to_bytes(4, "little")
        for part in parts
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"#!AMR\n", "ffmpeg -i FILE"),
        (b"", "it is none of WAV, MP3, FLAC"),
        (header(4_000_000_007, 10) + b"\x80" * 10, "4000000007 samples a second"),
        (header(10, 10) + b"\x80" * 10, "10 samples a second"),
        (header(767_999, 10) + b"\x80" * 10, "767999 samples a second"),
        (header(1000, 2_000_000) + b"\x80" * 2_000_000, "longer than 0.5 hours"),
    ],
)
def test_what_is_no_sound_or_too_long_is_refused(address, data, message):
    answer = post(address, data)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_other_sounds_than_wav_need_a_library_that_the_answer_names(address, sound, monkeypatch):
    av = pytest.importorskip("av", reason="other sounds than WAV are decoded by PyAV")
    file = io.BytesIO()
    with av.open(str(sound)) as read, av.open(file, "w", format="flac") as written:
        stream = written.add_stream("flac", rate=read.streams.audio[0].rate)
        stream.layout = "mono"
        for frame in (*read.decode(audio=0), None):
            written.mux(stream.encode(frame))
    found = post(address, file.getvalue(), language="en")
    assert found.json() == post(address, sound, language="en").json()
    monkeypatch.setitem(sys.modules, "av", None)
    refused = post(address, file.getvalue())
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "missing_library")
    assert "needs PyAV" in refused.json()["error"]["message"]


def test_a_sound_may_be_as_long_as_its_file():
    assert (sent_seconds(1000), sent_seconds(28_800_000)) == (1800, 7200)


def test_longer_files_are_read_where_bodies_may_be_longer(whisper, sound, monkeypatch):
    monkeypatch.setattr(problems, "MOST_BYTES_IN_FLIGHT", 1000)
    monkeypatch.setattr(audio, "MOST_BYTES", 100)
    with serving({"whisper": whisper}, Access(most_body_bytes=300_000)) as (address, _):
        assert post(address, sound).status_code == 200
        assert post(address, bytes(300_001)).status_code == 413


def test_forms_are_bounded_and_those_of_other_sites_are_refused(address, sound):
    for origin, status in (
        (None, 200), (address, 200), ("https://known.example", 200),
        ("https://evil.example", 403), ("null", 403),
    ):  # fmt: skip
        headers = {} if origin is None else {"Origin": origin}
        assert post(address, sound, headers=headers).status_code == status
    url = f"{address}{PATH}"
    assert http.post(url, json={"file": "a"}).status_code == 415
    assert http.post(url, data={"file": "a"}).status_code == 415
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert http.post(url, content=b"--y", headers=broken).status_code == 400
    assert post(address, b"\x00" * (audio.MOST_BYTES + 1)).status_code == 413
    other = http.post(url, data={"model": "whisper"}, files={"other": b"a"})
    assert "`other` is not a parameter" in other.json()["error"]["message"]


def test_bytes_of_a_form_stay_as_they_are():
    data = bytes(range(256)) * 40 + b"\r\n--\r\n\n\r\x0b\x0c\x1c\x85"
    request = httpx.Request(
        "POST", "http://x", data={"a": "é", "b[]": ["1", "2"]}, files={"file": ("n", data)}
    )
    found = audio.form_fields(request.read(), request.headers["content-type"])
    assert found == {"a": "é", "b": ["1", "2"], "file": data}


HEAD = b'Content-Disposition: form-data; name="a"\r\n'


@pytest.mark.parametrize(
    "body",
    [
        (b"--x\r\n" + HEAD + b"\r\n1\r\n") * 60_000 + b"--x--",
        b"--x\r\n" + HEAD + b"\r\n" + b"\r\n--" * 900_000,
        b"--x\r\n" + b"X: y\r\n" * 500_000 + b"\r\n1\r\n--x--",
        b"--x\r\n" + HEAD + b"Content-Transfer-Encoding: base64\r\n\r\nMQ==\r\n--x--",
        b"--x\r\n" + HEAD + b"\r\n1",
        b"--xy\r\n" + HEAD + b"\r\n1\r\n--xy--",
        b"--x--",
    ],
    ids=["parts", "marks", "head", "encoded", "cut", "other boundary", "empty"],
)
def test_forms_that_are_too_much_or_none_are_refused_at_once(body):
    begun = time.process_time()
    with pytest.raises(RequestError, match="form"):
        audio.form_fields(body, "multipart/form-data; boundary=x")
    assert time.process_time() - begun < 1


def test_parts_of_forms_may_have_no_name_and_no_head():
    body = b'ahead\r\n--"\r\n\r\n1\r\n--"  \r\n' + HEAD + b'\r\n\r\n\r\n--"--after'
    assert audio.form_fields(body, r'multipart/form-data; boundary="\""') == {"a": "\r\n"}


def test_a_client_that_goes_away_ends_its_transcription(address, sound, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    class Endless:
        """Hears on for as long as it is let."""

        @staticmethod
        def run(model, asked):
            begun.set()
            try:
                while True:
                    asked["progress"](0, 1)
                    time.sleep(0.01)
            finally:
                ended.set()

    with monkeypatch.context() as patched:
        patched.setattr(audio, "VERBS", {"transcribe": Endless})
        with leaving(address, PATH, files={"file": ("a.wav", b"x")}):
            assert begun.wait(120)
        assert ended.wait(120)
    assert post(address, sound).status_code == 200
