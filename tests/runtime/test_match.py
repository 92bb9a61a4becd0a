"""`gptrs.embed_images` and `gptrs.match`: images and texts in one space."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from runtime.tiny_clip import save_tiny_clip

pytest.importorskip("PIL", reason="images are resized by Pillow")
rng = np.random.default_rng(0)
PICTURES = [rng.integers(0, 256, (20, 30, 3), np.uint8) for _ in range(3)]
TEXTS = ["a cat", "a red dog sat", "red"]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def model(request, tmp_path_factory):
    folder = save_tiny_clip(tmp_path_factory.mktemp("clip") / request.param, request.param)
    return gptrs.load_model(folder, backend="ref")


def test_vectors_do_not_depend_on_the_batch(model):
    alone = np.concatenate([gptrs.embed_images(model, [one]) for one in PICTURES])
    for size in (1, 2, 8):
        assert np.allclose(gptrs.embed_images(model, PICTURES, size), alone, atol=1e-5)
    unit = gptrs.embed_images(model, PICTURES, normalize=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    texts = np.concatenate([gptrs.embed(model, [text]) for text in TEXTS])
    assert np.allclose(gptrs.embed(model, TEXTS), texts, atol=1e-5)


def test_scores_are_scaled_cosines(model):
    found = gptrs.match(model, PICTURES, TEXTS)
    pictures = gptrs.embed_images(model, PICTURES, normalize=True)
    cosines = pictures @ gptrs.embed(model, TEXTS, normalize=True).T
    scale, bias = model.image_text().scale_and_bias()
    assert found.logits.shape == (3, 3)
    assert np.allclose(found.logits, cosines * scale + bias, atol=1e-5)
    if model.kind == "siglip":
        assert np.allclose(found.probabilities, 1 / (1 + np.exp(-found.logits.astype(float))))
    else:
        assert np.allclose(found.probabilities.sum(axis=1), 1)
    assert (found.probabilities.argmax(1) == found.logits.argmax(1)).all()


def test_siglip_reads_the_padding(tmp_path):
    """Texts are filled up to the context with the tokenizer's own token."""
    folder = save_tiny_clip(tmp_path / "m", "siglip")
    model = gptrs.load_model(folder, backend="ref")
    filled = np.array([[0, 4, 8, 1, 1, 1]])
    assert np.allclose(gptrs.embed(model, ["cat"]), model.image_text().embed_texts(filled))
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="name no token of padding"):
        gptrs.embed(gptrs.load_model(folder, backend="ref"), ["cat"])


def test_what_is_no_image_or_text_is_refused(model):
    for wrong in ([], "a.png", [np.zeros((3, 3), np.uint8)]):
        with pytest.raises(UsageError, match="image"):
            gptrs.embed_images(model, wrong)
    for wrong in ([], "a cat"):
        with pytest.raises(UsageError, match="at least 1 text"):
            gptrs.match(model, PICTURES, wrong)
    with pytest.raises(UsageError, match="has no named prompts"):
        gptrs.embed(model, ["cat"], prompt_name="query")
    with pytest.raises(ModelError, match="cannot embed images"):
        gptrs.embed_images(gptrs.load_model(backend="ref"), PICTURES)
