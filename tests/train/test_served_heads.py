"""Heads that were learnt, over HTTP and as transformers and sentence-transformers run them."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from gptrs_runtime.load import load_model
from gptrs_serve.app import Access, new_app
from gptrs_serve.served import Served
from runtime.tiny_bert import save_tiny_bert
from train.test_heads import finetune, texts

pytestmark = pytest.mark.long
testclient = pytest.importorskip("starlette.testclient", reason="httpx is not installed")
QUERY, DOCUMENTS = "the cat", ["a red mat", "the dog", "one two"]


def learnt(tmp_path, rows):
    """Return the folder of a head after some updates."""
    save_tiny_bert(tmp_path / "bert")
    # As BERT's own tokenizer has it, which transformers makes whatever the file says.
    tokenizer = Tokenizer.from_file(str(tmp_path / "bert" / "tokenizer.json"))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    tokenizer.save(str(tmp_path / "bert" / "tokenizer.json"))
    finetune(tmp_path / "bert", rows, tmp_path / "out", "--steps", 12)
    return tmp_path / "out"


def served(folder, path, body):
    """Return the answer of a server to a request."""
    app = new_app(Served({"head": load_model(folder, "ref")}, None, 8), Access())
    with testclient.TestClient(app) as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_classes_are_those_of_transformers(tmp_path):
    rows = [{"text": text, "label": kind} for text, kind, _ in texts()]
    folder = learnt(tmp_path, rows)
    answer = served(folder, "/v1/classify", {"input": DOCUMENTS})
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    transformers = pytest.importorskip("transformers", reason="it is the oracle")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row, text in zip(answer["data"], DOCUMENTS, strict=True):
        with torch.no_grad():
            odds = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].numpy()
        assert row["probs"] == pytest.approx(odds.tolist(), abs=1e-5)
        assert row["label"] == model.config.id2label[int(odds.argmax())]


def test_vectors_are_those_of_sentence_transformers(tmp_path):
    words = ("cat", "dog", "red", "blue")
    rows = [{"anchor": f"the {word}", "positive": f"a {word}"} for word in words * 16]
    folder = learnt(tmp_path, rows)
    answer = served(folder, "/v1/embeddings", {"input": DOCUMENTS, "model": "head"})
    package = pytest.importorskip("sentence_transformers", reason="it is the oracle")
    expected = package.SentenceTransformer(str(folder), device="cpu").encode(DOCUMENTS)
    found = np.array([row["embedding"] for row in answer["data"]])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_ranks_are_those_of_a_cross_encoder(tmp_path):
    rows = [
        {"query": word, "document": f"the {other} sat", "label": int(word == other)}
        for word in ("cat", "dog", "red", "blue") for other in ("cat", "dog", "red", "blue")
    ]  # fmt: skip
    folder = learnt(tmp_path, rows * 4)
    answer = served(folder, "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})
    package = pytest.importorskip("sentence_transformers", reason="it is the oracle")
    oracle = package.CrossEncoder(str(folder), device="cpu")
    expected = oracle.predict([(QUERY, text) for text in DOCUMENTS])
    found = {row["index"]: row["relevance_score"] for row in answer["results"]}
    assert [found[n] for n in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)
