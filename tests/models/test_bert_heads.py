"""The heads of every kind of the BERT family agree with transformers on the same directory."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_models.encoder_heads import head_of, labels_of
from support.tiny_models import tiny

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

SIZES: dict[str, object] = {
    "vocab_size": 53,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.4,
    "pad_token_id": 1,
    "num_labels": 3,
}
KINDS: dict[str, dict[str, object]] = {
    "Bert": {"hidden_act": "relu"},
    "Roberta": {"hidden_act": "relu"},
    "XLMRoberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-3},
    "Camembert": {},
    "DistilBert": {
        **{"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        **{"activation": "relu", "seq_classif_dropout": 0.0},
    },
    "MPNet": {},
    "Electra": {"embedding_size": 12, "hidden_act": "relu"},
    "Albert": {"embedding_size": 12},
}
HEADS = {
    "text_classifier": "ForSequenceClassification",
    "token_classifier": "ForTokenClassification",
    "masked_lm": "ForMaskedLM",
}
WITH_SEGMENTS = ("Bert", "Electra", "Albert")
CASES = [(kind, head, True) for kind in KINDS for head in HEADS]
UNTIED = [(kind, "masked_lm", False) for kind in ("Bert", "Roberta", "DistilBert", "Albert")]


@pytest.fixture(
    scope="module", params=[*CASES, *UNTIED], ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}"
)
def saved(request, tmp_path_factory):
    """The name of a kind, a head, and a directory with both and the model in it."""
    kind, head, tied = request.param
    config = {**SIZES, **KINDS[kind], "tie_word_embeddings": tied}
    folder = tmp_path_factory.mktemp("heads") / kind
    model = tiny(folder, f"{kind}{HEADS[head]}", config, seed=3)
    return kind, head, folder, model


def _batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two pairs of unequal lengths: tokens, segments, mask."""
    mask = np.arange(20) < np.array([20, 9])[:, np.newaxis]
    tokens = np.where(mask, np.random.default_rng(1).integers(4, 53, (2, 20)), 1)
    segments = (np.arange(20) >= np.array([8, 3])[:, np.newaxis]) & mask
    return tokens, segments.astype(np.int64), mask


def _close(ours, theirs):
    error = np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1)
    assert (error <= 1e-4 * np.linalg.norm(theirs, axis=-1)).all()


def test_logits(saved, backend_name):
    kind, head, folder, theirs = saved
    model = gptrs.load_model(folder, backend=backend_name)
    assert model.capabilities == {"text_embedder", "hidden_states", head}
    tokens, segments, mask = _batch()
    pair = head == "text_classifier" and kind in WITH_SEGMENTS
    given = {"token_type_ids": torch.from_numpy(segments)} if pair else {}
    with torch.no_grad():
        expected = theirs(
            torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(int)), **given
        ).logits.numpy()
    if head == "text_classifier":
        _close(model.text_classifier().classify_texts(tokens, segments, mask), expected)
    elif head == "token_classifier":
        found = model.token_classifier().classify_tokens(tokens, mask)
        _close(found[mask], expected[mask])
    else:
        places = np.flatnonzero(mask)[::3]
        found = model.masked_lm().predict_tokens(tokens, mask, places)
        _close(found, expected.reshape(40, 53)[places])


def test_forward_gives_the_logits_of_a_text(saved):
    kind, _, folder, theirs = saved
    if kind != "Bert":
        pytest.skip("what calls the head does not depend on the kind")
    model = gptrs.load_model(folder, backend="ref")
    tokens = _batch()[0][:1]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    _close(model.forward(tokens), expected)


@pytest.mark.whole
def test_a_headless_body_says_what_is_missing(saved, nothing_is_left_unread):
    kind, _, folder, _ = saved
    if kind != "Electra":
        pytest.skip("what a head is read from does not depend on the kind")
    settings = json.loads((folder / "config.json").read_text())
    body = folder.parent / "body"
    if not body.exists():
        body.mkdir()
        for file in folder.iterdir():
            (body / file.name).write_bytes(file.read_bytes())
        (body / "config.json").unlink()
    (body / "config.json").write_text(json.dumps({**settings, "architectures": ["XModel"]}))
    model = gptrs.load_model(body, backend="ref")
    ((_, unread),) = nothing_is_left_unread
    assert all(name.startswith(("classifier.", "generator_predictions.")) for name in unread)
    nothing_is_left_unread.clear()
    assert model.capabilities == {"text_embedder", "hidden_states"}
    for ask in (model.text_classifier, model.token_classifier, model.masked_lm):
        with pytest.raises(ModelError, match="it offers: hidden_states, text_embedder"):
            ask()
    with pytest.raises(ModelError, match="has no logits"):
        model.forward(np.array([[4]]))


@pytest.mark.whole
def test_a_head_without_weights_is_told_of(saved, caplog):
    kind, _, folder, theirs = saved
    if kind != "MPNet":
        pytest.skip("what a head is read from does not depend on the kind")
    alone = folder.parent / "alone"
    theirs.base_model.save_pretrained(alone)
    (alone / "config.json").write_text((folder / "config.json").read_text())
    with caplog.at_level(logging.INFO, "gptrs"):
        model = gptrs.load_model(alone, backend="ref")
    assert model.capabilities == {"text_embedder", "hidden_states"}
    assert "names a head without weights: the encoder alone is used" in caplog.text


def test_a_head_that_is_not_known_is_told_of(caplog):
    with caplog.at_level(logging.INFO, "gptrs"):
        assert head_of({"architectures": ["BertForQuestionAnswering"]}) is None
        assert head_of({"architectures": ["BertForPreTraining"]}) == "word"
        assert head_of({"architectures": ["BertModel"]}) is None
        assert head_of({}) is None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "BertForQuestionAnswering is not supported: the encoder alone" in said[0]
    with pytest.raises(ModelError, match="must be a list of names"):
        head_of({"architectures": [3]})


def test_the_number_of_classes():
    assert labels_of({"id2label": {"0": "a", "1": "b", "2": "c"}}) == 3
    assert labels_of({"num_labels": 5}) == 5
    assert labels_of({}) == 2
    with pytest.raises(ModelError, match="needs its classes"):
        labels_of({"id2label": []})
