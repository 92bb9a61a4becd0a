"""`gptrs match` and `gptrs embed --image`: what Python says, in tables and as JSON."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs as library
from runtime.tiny_clip import save_tiny_clip

image = pytest.importorskip("PIL.Image", reason="images are read by Pillow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("match")
    rng = np.random.default_rng(1)
    for name in ("one.png", "two.png"):
        image.fromarray(rng.integers(0, 256, (9, 14, 3), np.uint8)).save(root / name)
    save_tiny_clip(root / "clip")
    return root


def test_scores(gptrs, folder, monkeypatch):
    monkeypatch.chdir(folder)
    files, texts = ["one.png", "two.png"], ["a cat", "red"]
    expected = library.match(library.load_model("clip", backend="ref"), files, texts)
    given = ("--image", "one.png", "--image", "two.png", "--text", "a cat", "--text", "red")
    asked = ("match", "--model", "clip", *given, "--backend", "ref")
    fields = gptrs(*asked, "--json").json
    assert (fields["images"], fields["texts"]) == (files, texts)
    assert np.allclose(fields["logits"], expected.logits)
    assert np.allclose(fields["probabilities"], expected.probabilities)
    header, first, *_ = gptrs(*asked).out.splitlines()
    assert header.split() == ["IMAGE", "PROBABILITY", "LOGIT", "TEXT"]
    assert first.startswith("one.png  ")
    assert f"{expected.probabilities[0].max():.4f}" in first


def test_vectors_of_images(gptrs, folder, monkeypatch):
    monkeypatch.chdir(folder)
    asked = ("embed", "--model", "clip", "--image", "one.png", "--backend", "ref")
    fields = gptrs(*asked, "--json").json
    wanted = library.embed_images(library.load_model("clip", backend="ref"), ["one.png"])
    assert np.allclose(fields["embeddings"], wanted)
    assert (fields["images"], fields["texts"]) == (["one.png"], [])
    assert gptrs(*asked).out.splitlines()[0].split() == ["#", "VECTOR", "IMAGE"]
    both = gptrs(*asked, "--text", "a")
    assert both.code == 2
    assert "exclude each other" in both.err
    texts = gptrs("embed", "--model", "clip", "--text", "red", "--backend", "ref", "--json").json
    assert texts["shape"] == [1, 8]
    refused = gptrs("match", "--model", "demo", "--image", "one.png", "--text", "a")
    assert refused.code == 3
    assert "does not compare images with texts" in refused.err
