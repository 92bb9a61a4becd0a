"""Conversations with images over HTTP: `data:` URLs, and nothing that is opened."""

from __future__ import annotations

import base64
import io
import threading

import pytest

import gptrs
from gptrs_runtime.images import image_prompts
from gptrs_runtime.load import load_model
from serve.clients import http
from serve.conftest import serving

image = pytest.importorskip("PIL.Image", reason="images need Pillow")
pytest.importorskip("torch", reason="the tiny model is made by torch")
pytest.importorskip("transformers", reason="the tiny model is made by transformers")

from models.image_lm_support import pixels, save_image_lm  # noqa: E402


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A tiny model that reads images."""
    return load_model(save_image_lm(tmp_path_factory.mktemp("vlm") / "m"), backend="ref")


@pytest.fixture(scope="module")
def address(reader):
    with serving({"tiny": reader}) as (address, _):
        yield address


def url_of(levels) -> str:
    file = io.BytesIO()
    image.fromarray(levels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def asked(url: str, **more: object) -> dict:
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": url, **more}},
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def post(address: str, path: str, body: dict):
    return http.post(f"{address}{path}", json=body)


def test_an_answer_about_an_image_is_that_of_python(address, reader):
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True}
    for levels in (pixels(50, 40), pixels(20, 90)):
        messages = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is"},
                    {"type": "image", "image": levels},
                ],
            }
        ]
        greedy = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}
        wanted = gptrs.generate(reader, messages, temperature=0.0, **greedy)
        answer = post(address, "/v1/chat/completions", {**asked(url_of(levels)), **body}).json()
        assert wanted.logprobs is not None
        scores = answer["choices"][0]["logprobs"]["content"]
        found = [score["logprob"] for score in scores]
        assert found == pytest.approx([score.logprob for score in wanted.logprobs], abs=1e-5)
        assert answer["choices"][0]["message"]["content"] == wanted.text
        assert answer["usage"]["prompt_tokens"] == len(wanted.prompt_token_ids)


def test_pictures_are_seen_outside_of_the_engine(address, monkeypatch):
    vectors, threads = image_prompts.Picture.vectors, []

    def noted(picture, lm):
        if not picture.is_seen(lm):
            threads.append(threading.current_thread().name)
        return vectors(picture, lm)

    monkeypatch.setattr(image_prompts.Picture, "vectors", noted)
    body = {**asked(url_of(pixels(31, 57))), "max_tokens": 2}
    assert post(address, "/v1/chat/completions", body).status_code == 200
    assert len(threads) == 5
    assert all(name.startswith("gptrs-texts") for name in threads)
    assert post(address, "/v1/chat/completions", body).status_code == 200
    assert len(threads) == 5


def test_tokens_of_images_are_those_of_the_vocabulary(address, reader):
    found = post(address, "/tokenize", asked(url_of(pixels(50, 40)))).json()["tokens"]
    assert max(found) < reader.causal_lm().vocab_size
    assert found.count(reader.image_lm().image_token) == 5 * reader.image_lm().picture_tokens


def test_an_image_is_the_same_in_every_protocol(address):
    url = url_of(pixels(50, 40))
    kind, data = url.removeprefix("data:").split(";base64,")
    told = post(address, "/tokenize", asked(url)).json()["count"]
    text, limits = "what is", {"max_tokens": 2}
    source = {"type": "base64", "media_type": kind, "data": data}
    blocks = [{"type": "text", "text": text}, {"type": "image", "source": source}]
    message = {"messages": [{"role": "user", "content": blocks}]}
    usage = post(address, "/v1/messages", {**message, **limits}).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == told
    assert post(address, "/v1/messages/count_tokens", message).json()["input_tokens"] == told
    parts = [{"type": "input_text", "text": text},
             {"type": "input_image", "image_url": url, "detail": "low"}]  # fmt: skip
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 2}
    assert post(address, "/v1/responses", body).json()["usage"]["input_tokens"] == told
    body = {"model": "tiny", "stream": False, "options": {"num_predict": 2},
            "messages": [{"role": "user", "content": text, "images": [data]}]}  # fmt: skip
    assert post(address, "/api/chat", body).json()["prompt_eval_count"] == told


def test_a_url_may_be_written_in_capitals_and_its_data_in_lines(address):
    url = url_of(pixels(20, 20))
    head, _, data = url.partition(",")
    lines = "\r\n".join(data[at : at + 76] for at in range(0, len(data), 76))
    found = [
        post(address, "/v1/chat/completions", {**asked(each), "max_tokens": 3, "temperature": 0})
        for each in (url, f"{head.upper()},{lines}")
    ]
    assert [each.status_code for each in found] == [200, 200]
    assert found[0].json()["choices"] == found[1].json()["choices"]


@pytest.mark.parametrize("url", ["https://example.org/fox.png", "file:///etc/hostname", "fox.png"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_nothing_is_opened(address, url, path):
    answer = post(address, path, asked(url))
    assert answer.status_code == 400
    assert "data:image/" in answer.json()["error"]["message"]


def test_a_path_in_the_form_of_transformers_is_refused(address, tmp_path):
    image.fromarray(pixels(9, 9)).save(tmp_path / "fox.png")
    for part in ({"image": str(tmp_path / "fox.png")}, {"path": str(tmp_path / "fox.png")}):
        messages = [{"role": "user", "content": [{"type": "image", **part}]}]
        for path in ("/v1/chat/completions", "/tokenize"):
            assert post(address, path, {"messages": messages}).status_code == 400


def test_images_that_cannot_fit_are_not_decoded(address, monkeypatch):
    def decoded(*given, **more):
        raise AssertionError("it has been decoded")

    monkeypatch.setattr(image_prompts, "levels_of", decoded)
    body = asked(url_of(pixels(8, 8)))
    body["messages"][0]["content"] += body["messages"][0]["content"][1:] * 59
    answer = post(address, "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "the images take 540 tokens and more" in answer.json()["error"]["message"]


def test_what_is_no_image_is_refused(address):
    url = "data:image/png;base64,Zm94"
    part = {"type": "input_image", "image_url": url}
    for path, body, param in (
        ("/v1/chat/completions", asked(url), "messages"),
        ("/tokenize", asked(url), "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": [part]}]}, "input"),
    ):
        answer = post(address, path, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert "not an image that can be read" in error["message"]


def test_what_advises_others_how_to_read_a_part_is_taken(address):
    """There is one way here: it asks for nothing."""
    url = url_of(pixels(9, 9))
    plain = post(address, "/v1/chat/completions", asked(url)).json()["usage"]
    for detail in ("low", "high", "auto", None):
        answer = post(address, "/v1/chat/completions", asked(url, detail=detail))
        assert answer.json()["usage"]["prompt_tokens"] == plain["prompt_tokens"]
