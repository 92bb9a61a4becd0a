"""Embeddings as clients ask for them: tokens, fewer dimensions, base64, images; and scores."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

import gptrs
from gptrs_runtime.embedding.embed import cosine_similarities
from gptrs_runtime.load import load_model
from gptrs_runtime.text_classes.classify import longest_text
from gptrs_serve import listing
from gptrs_serve.pools import Pool
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_clip import save_tiny_clip
from runtime.tiny_heads import save_tiny_head
from serve.clients import http, post
from serve.conftest import serving


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    return {
        "bert": load_model(save_tiny_bert(folder / "bert"), backend="ref"),
        "rank": load_model(
            save_tiny_head(folder / "rank", "ForSequenceClassification", ("x",)), backend="ref"
        ),
    }


@pytest.fixture(scope="module")
def address(models):
    with serving(models) as (address, _):
        yield address


def vectors(address, **body):
    answer = post(address, "/v1/embeddings", body)
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


def test_tokens_are_embedded_as_their_text(address, models):
    texts = ["the cat", "a dog sat"]
    tokens = [models["bert"].tokenizer.encode(text) for text in texts]
    expected = gptrs.embed(models["bert"], texts)
    np.testing.assert_allclose(vectors(address, input=tokens), expected, rtol=1e-6)
    np.testing.assert_allclose(vectors(address, input=tokens[0]), expected[:1], rtol=1e-6)
    mixed = vectors(address, input=[tokens[0], texts[1], {"text": texts[0]}])
    # On ref, NumPy multiplies three texts in another order than two.
    np.testing.assert_allclose(mixed, expected[[0, 1, 0]], rtol=1e-5, atol=1e-6)
    usage = post(address, "/v1/embeddings", {"input": tokens}).json()["usage"]
    assert usage["prompt_tokens"] == sum(map(len, tokens))


def test_vectors_as_text_embeddings_inference_has_them(address, models):
    texts = ["the cat", "a dog sat"]
    for given, more in (
        (texts, {}),
        (texts[0], {"normalize": True, "dimensions": 5}),
        (texts, {"normalize": False, "truncation_direction": "Right"}),
    ):
        options = {name: more[name] for name in ("normalize", "dimensions") if name in more}
        expected = gptrs.embed(
            models["bert"], [given] if isinstance(given, str) else given,
            **{"normalize": True, **options},
        )  # fmt: skip
        found = post(address, "/embed", {"inputs": given, **more}).json()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(post(address, "/embed", {"inputs": "the cat " * 500, "truncate": True}).json()) == 1
    for wrong, param in (
        ({"inputs": "the cat " * 500}, "truncate"),
        ({"inputs": "a", "dimensions": 10**6}, "dimensions"),
        ({"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        ({"inputs": "a", "truncation_direction": "Left"}, "truncation_direction"),
        ({"inputs": []}, "inputs"),
    ):
        refused = post(address, "/embed", wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["the cat", "a"]}),
        ("/api/embed", {"model": "bert", "input": ["the cat", "a"]}),
        ("/embed", {"inputs": ["the cat", "a"]}),
    ],
)
def test_many_vectors_are_written_beside_streams(address, monkeypatch, path, body):
    few = post(address, path, body).json()
    taken: list[object] = []
    run = Pool.run
    monkeypatch.setattr(listing, "_MOST_NUMBERS", 1)
    monkeypatch.setattr(Pool, "run", lambda self, work: taken.append(work) or run(self, work))
    many = post(address, path, body).json()
    if path == "/api/embed":
        few, many = few["embeddings"], many["embeddings"]
    assert (len(taken), many) == (1, few)


@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_fewer_dimensions_are_the_first_ones(address, models, size, form):
    (found,) = vectors(address, input="the cat", dimensions=size, encoding_format=form)
    if form == "base64":
        found = np.frombuffer(base64.b64decode(found), "<f4")
    np.testing.assert_allclose(
        found, gptrs.embed(models["bert"], ["the cat"], dimensions=size)[0], rtol=1e-6
    )
    whole = gptrs.embed(models["bert"], ["the cat"])[0]
    cosine = np.dot(found, whole[:size]) / np.linalg.norm(found) / np.linalg.norm(whole[:size])
    assert cosine == pytest.approx(1, abs=1e-6)
    if np.isclose(np.linalg.norm(whole), 1):
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": "a", "dimensions": 17}, "dimensions", "have 16 dimensions, asked for 17"),
        ({"input": "a", "dimensions": 0}, "dimensions", "`dimensions`: Expected `int` >= 1"),
        ({"input": [[5000]]}, "input", "token 5000 is not in the vocabulary"),
        ({"input": [3, "a"]}, "input", "mixes tokens and texts"),
        ({"input": [{"text": "a", "x": "b"}]}, "input[0]", "`input[0]`: `x` is not a parameter"),
        ({"input": [{"image": "data:image/png;base64,AA"}]}, "input", "`bert` embeds no images"),
        ({"input": [4] * 41}, "truncate", "`input` has 41 tokens, the model reads 40"),
        ({"input": [[4], [4] * 41]}, "truncate", "`input[1]` has 41 tokens, the model reads 40"),
        ({"input": []}, "input", "length >= 1"),
    ],
)
def test_refusals(address, body, param, message):
    answer = post(address, "/v1/embeddings", {"model": "bert", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("model", "first", "second", "named"),
    [
        ("rank", "a", ["a", "cat " * 50], "`text_1` with `text_2[1]` has 54 tokens"),
        ("rank", ["a", "a"], ["a", "cat " * 50], "`text_1[1]` with `text_2[1]` has 54 tokens"),
        ("rank", "a", "cat " * 50, "`text_1` with `text_2` has 54 tokens"),
        ("bert", "a", ["a", "cat " * 50], "`text_2[1]` has 52 tokens"),
        ("bert", ["a", "cat " * 50], ["a", "a"], "`text_1[1]` has 52 tokens"),
    ],
)
def test_a_score_names_the_text_that_is_too_long(address, model, first, second, named):
    answer = post(address, "/v1/score", {"model": model, "text_1": first, "text_2": second})
    assert answer.json()["error"]["message"].startswith(named)


def test_tokens_that_are_too_many_are_cut_where_that_is_asked_for(address):
    asked = {"input": [[4, 5, *[6] * 60]]}
    assert post(address, "/v1/embeddings", asked).status_code == 400
    cut = vectors(address, **asked, truncate=True)
    assert cut == vectors(address, input=[[4, 5, *[6] * 38]])


def test_images_and_texts_in_one_list(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    clip = load_model(save_tiny_clip(tmp_path / "clip"), backend="ref")
    levels = np.random.default_rng(1).integers(0, 255, (30, 40, 3), np.uint8)
    file = io.BytesIO()
    image.fromarray(levels).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    with serving({"clip": clip}) as (address, _):
        found = vectors(address, input=["the cat", {"image": url}, {"text": "dog"}])
        few = vectors(address, input=[{"image": url}], dimensions=3)
        refused = post(address, "/v1/embeddings", {"input": [{"image": "/etc/passwd"}]})
    texts = gptrs.embed(clip, ["the cat", "dog"])
    images = gptrs.embed_images(clip, [levels])
    np.testing.assert_allclose(found, [texts[0], images[0], texts[1]], rtol=1e-5)
    np.testing.assert_allclose(few, images[:, :3], rtol=1e-5)
    assert refused.status_code == 400
    assert "data:image/" in refused.json()["error"]["message"]


def test_scores_of_pairs_are_those_of_rankings_and_cosines(address, models):
    texts = ["the cat", "a dog sat"]

    def scores(**body):
        answer = post(address, "/v1/score", body).json()
        assert [row["index"] for row in answer["data"]] == list(range(len(answer["data"])))
        return [row["score"] for row in answer["data"]]

    ranked = {one.index: one.score for one in gptrs.rank(models["rank"], "cat", texts)}
    assert scores(text_1="cat", text_2=texts) == pytest.approx([ranked[0], ranked[1]])
    paired = [gptrs.rank(models["rank"], a, [b])[0].score for a, b in zip(texts, texts[::-1],
              strict=True)]  # fmt: skip
    assert scores(model="rank", text_1=texts, text_2=texts[::-1]) == pytest.approx(paired)
    made = gptrs.embed(models["bert"], ["cat", *texts])
    cosines = cosine_similarities(made)[0, 1:]
    assert scores(model="bert", text_1="cat", text_2=texts) == pytest.approx(cosines.tolist())
    refused = post(address, "/score", {"text_1": texts, "text_2": [*texts, "a"]})
    assert refused.status_code == 400
    v2 = post(address, "/v2/rerank", {"query": "cat", "documents": texts, "top_n": 1}).json()
    assert v2["results"][0]["index"] == max(ranked, key=lambda index: ranked[index])


def test_texts_are_ranked_as_text_embeddings_inference_has_it(address, models):
    texts = ["the cat", "a dog sat", "cat"]
    ranked = gptrs.rank(models["rank"], "cat", texts)
    for more, field in (({}, None), ({"return_text": True}, "text"), ({"raw_scores": False}, None)):
        found = post(address, "/rerank", {"query": "cat", "texts": texts, **more}).json()
        assert [each["index"] for each in found] == [each.index for each in ranked]
        scores = [each.score for each in ranked]
        assert [each["score"] for each in found] == pytest.approx(scores)
        assert [each.get("text") for each in found] == [field and each.text for each in ranked]
    (best,) = post(address, "/rerank", {"query": "cat", "texts": texts, "top_n": 1}).json()
    asked = {"query": "cat", "documents": texts, "return_text": True}
    plain = post(address, "/rerank", asked).json()["results"]
    assert plain[0]["index"] == best["index"]
    assert plain[0]["document"] == {"text": texts[best["index"]]}
    for wrong, param in (
        ({}, "documents"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"], "documents": ["a"]}, "documents"),
        ({"texts": ["a"], "raw_scores": True}, "raw_scores"),
        ({"texts": ["a", "cat " * 50]}, "truncate"),
        ({"texts": ["a"], "model": "bert"}, "model"),
    ):
        refused = post(address, "/rerank", {"query": "cat", **wrong})
        assert param != "truncate" or "`texts[1]` has" in refused.text
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_models_are_described_as_text_embeddings_inference_has_it(address, models):
    found = http.get(f"{address}/info").json()
    assert (found["model_id"], found["model_type"]) == ("bert", {"embedding": {}})
    assert (found["max_input_length"], found["model_dtype"]) == (40, "float32")
    ranker = http.get(f"{address}/info?model=rank").json()
    labels = {"id2label": {"0": "x"}, "label2id": {"x": "0"}}
    assert ranker["model_type"] == {"reranker": labels}
    assert ranker["max_input_length"] == longest_text(models["rank"])
    assert http.get(f"{address}/info?model=none").status_code == 404
