"""BART with a head for classes of texts agrees with transformers; other heads are refused."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_models import bart, t5
from models.llama_support import assert_close
from models.seq2seq_models import SMALL, save_seq2seq_of

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")


@pytest.mark.long
def test_scores_of_unequal_texts(tmp_path, backend_name):
    settings = {**SMALL, "num_labels": 4, "scale_embedding": True}
    made = "BartForSequenceClassification"
    folder = save_seq2seq_of(tmp_path / "m", made, settings, seed=3)
    model = gptrs.load_model(folder, backend=backend_name)
    assert model.capabilities == {"text_classifier"}
    mask = np.arange(21) < np.array([21, 4, 13])[:, np.newaxis]
    tokens = np.where(mask, np.random.default_rng(2).integers(4, 60, mask.shape), 1)
    tokens[:, 2] = 2  # the token between two texts: the last one counts
    tokens[np.arange(3), [20, 3, 12]] = 2
    with torch.no_grad():
        theirs = getattr(transformers, made).from_pretrained(folder, dtype=torch.float32).eval()
        wanted = theirs(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask).long())
    scorer, segments = model.text_classifier(), np.zeros_like(tokens)
    assert_close(scorer.classify_texts(tokens, segments, mask), wanted.logits.numpy())
    with pytest.raises(ModelError, match="a text has no token 2"):
        scorer.classify_texts(np.full((1, 5), 7), segments[:1, :5], mask[:1, :5])


@pytest.mark.parametrize(
    ("load", "kind", "name"),
    [
        (bart.load, "bart", "BartForQuestionAnswering"),
        (bart.load, "mbart", "MBartForSequenceClassification"),
        (t5.load, "t5", "T5ForTokenClassification"),
    ],
)
def test_other_heads_are_refused(load, kind, name):
    with pytest.raises(ModelError, match=f"the head of {name} is not supported"):
        load({"model_type": kind, "architectures": [name]}, None)
