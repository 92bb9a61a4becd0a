"""Heads of encoders on texts: what transformers makes of the same directories."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.text_classes.classify import class_scores, rank_scores, sigmoid, unchanged
from gptrs_runtime.tokenization.encoded_text import cut_lengths
from models.llama_support import edit_config
from runtime.tiny_bert import write_json
from runtime.tiny_heads import save_tiny_head, settings_of

TEXTS = ["the cat sat on the mat", "a dog ran", "red houses two three", "one House query : blue"]
PAIRS = [(one, other) for one in TEXTS[:2] for other in TEXTS]
NLI = ("contradiction", "neutral", "entailment")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXT, TOKEN, WORD = "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A directory of each head."""
    root = tmp_path_factory.mktemp("heads")
    return {
        "nli": save_tiny_head(root / "nli", TEXT, NLI),
        "ranker": save_tiny_head(root / "ranker", TEXT, ("LABEL_0",)),
        "ner": save_tiny_head(root / "ner", TOKEN, TAGS),
        "words": save_tiny_head(root / "words", WORD),
    }


@pytest.fixture(scope="module")
def models(folders) -> dict[str, gptrs.LoadedModel]:
    return {name: gptrs.load_model(folder, backend="ref") for name, folder in folders.items()}


def _pipeline(task: str, folder: Path):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    pytest.importorskip("torch", reason="parity needs torch")
    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu")


def _as_pairs(found):
    return [(each.label, pytest.approx(each.score, abs=2e-5)) for each in found]


def test_classes_of_texts_and_pairs(folders, models):
    theirs = _pipeline("text-classification", folders["nli"])
    given = [{"text": one, "text_pair": other} for one, other in PAIRS]
    for asked, ours in ((TEXTS, TEXTS), (given, PAIRS)):
        expected = [[(e["label"], e["score"]) for e in row] for row in theirs(asked, top_k=None)]
        assert [_as_pairs(row) for row in gptrs.classify(models["nli"], ours, 3)] == expected


def test_the_second_text_counts(models):
    one, other = gptrs.classify(models["nli"], [("a cat", "a dog"), ("a dog", "a cat")])
    assert one != other
    alone = gptrs.classify(models["nli"], ["a cat"])[0]
    assert alone != gptrs.classify(models["nli"], [("a cat", "")])[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"model_input_names": None},
        {"model_input_names": None, "tokenizer_class": "BertTokenizerFast"},
        {"model_input_names": None, "tokenizer_class": None},  # older folders: in config.json
    ],
)
def test_segments_count_only_where_the_tokenizer_has_them(tmp_path, changed):
    folder = save_tiny_head(tmp_path / "m", TEXT, NLI)
    path = folder / "tokenizer_config.json"
    given = {**json.loads(path.read_text()), **changed}
    kept = {name: value for name, value in given.items() if value is not None}
    path.write_text(json.dumps(kept))
    if "tokenizer_class" not in kept:
        edit_config(folder, tokenizer_class="PreTrainedTokenizerFast")
    theirs = _pipeline("text-classification", folder)
    expected = theirs([{"text": "a cat", "text_pair": "a dog"}], top_k=None)
    found = gptrs.classify(gptrs.load_model(folder, backend="ref"), [("a cat", "a dog")])
    assert [_as_pairs(row) for row in found] == [
        [(e["label"], e["score"]) for e in row] for row in expected
    ]


def test_long_texts_are_cut_and_told_of(folders, models, caplog):
    theirs = _pipeline("text-classification", folders["nli"])
    long = "the cat " * 30
    pairs = [(long, "a dog"), ("a dog", long), (long, long + "dog"), ("a " * 15, "the " * 12)]
    given = [{"text": one, "text_pair": other} for one, other in pairs]
    expected = [
        [(e["label"], e["score"]) for e in row]
        for row in theirs(given, top_k=None, truncation=True, max_length=24)
    ]
    with caplog.at_level(logging.INFO, "gptrs"):
        assert [_as_pairs(row) for row in gptrs.classify(models["nli"], pairs)] == expected
    assert "4 of 4 texts were cut to 24 tokens" in caplog.text


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [
        ((3, 4), 7, [3, 4]),
        ((9,), 5, [5]),
        ((2, 9), 7, [2, 5]),
        ((9, 2), 7, [5, 2]),
        ((9, 9), 7, [3, 4]),
        ((9, 8), 7, [4, 3]),
        ((3, 3), 0, [0, 0]),
    ],
)
def test_the_longer_of_two_gives_way(lengths, room, kept):
    assert cut_lengths(lengths, room) == kept


def test_documents_are_ranked(models):
    model = models["ranker"]
    found = gptrs.rank(model, "the cat", TEXTS)
    logits = {text: gptrs.classify(model, [("the cat", text)])[0][0].score for text in TEXTS}
    assert [each.text for each in found] == sorted(TEXTS, key=lambda text: -logits[text])
    assert [each.score for each in found] == [
        pytest.approx(logits[e.text], abs=1e-6) for e in found
    ]
    assert [TEXTS[each.index] for each in found] == [each.text for each in found]
    assert gptrs.rank(model, "the cat", TEXTS, top_k=2) == found[:2]


def test_pairs_are_read_as_the_files_of_a_saved_cross_encoder_say(folders, tmp_path):
    pytest.importorskip("torch", reason="a cross-encoder runs on it")
    package = pytest.importorskip("sentence_transformers", reason="parity needs it")
    package.CrossEncoder(str(folders["ranker"]), device="cpu").save_pretrained(str(tmp_path))
    settings = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    limits = {"max_seq_length": 8, "do_lower_case": True}
    write_json(tmp_path / "sentence_bert_config.json", {**settings, **limits})
    documents = [*TEXTS, "The HOUSE"]
    theirs = package.CrossEncoder(str(tmp_path), device="cpu").rank("The cat", documents)
    found = gptrs.rank(gptrs.load_model(tmp_path, backend="ref"), "The cat", documents)
    scores = {each.index: each.score for each in found}
    for row in theirs:
        assert scores[row["corpus_id"]] == pytest.approx(float(row["score"]), abs=2e-5)


def test_scores_are_those_that_the_files_name():
    assert rank_scores({}) is sigmoid
    name = "torch.nn.modules.linear.Identity"
    assert rank_scores({"sentence_transformers": {"activation_fn": name}}) is unchanged
    assert rank_scores({"sbert_ce_default_activation_function": name}) is unchanged
    with pytest.raises(ModelError, match=r"must be of `torch.nn`: .*Sigmoid.*, found .*os.system"):
        rank_scores({"sbert_ce_default_activation_function": "os.system"})
    assert class_scores({"problem_type": "multi_label_classification"}, 3) is sigmoid
    assert class_scores({"problem_type": "regression"}, 1) is unchanged
    assert class_scores({}, 1) is sigmoid
    with pytest.raises(ModelError, match="`problem_type` must be one of"):
        class_scores({"problem_type": "guess"}, 2)


def test_many_labels_are_scored_one_by_one(folders, tmp_path):
    folder = save_tiny_head(tmp_path / "m", TEXT, NLI, problem_type="multi_label_classification")
    theirs = _pipeline("text-classification", folder)
    expected = [[(e["label"], e["score"]) for e in row] for row in theirs(TEXTS, top_k=None)]
    found = gptrs.classify(gptrs.load_model(folder, backend="ref"), TEXTS)
    assert [_as_pairs(row) for row in found] == expected


@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_of_ones_own(folders, models, multi_label):
    theirs = _pipeline("zero-shot-classification", folders["nli"])
    labels = ["red", "cat", "house"]
    expected = theirs(TEXTS, labels, hypothesis_template="the {} sat", multi_label=multi_label)
    found = gptrs.zero_shot(models["nli"], TEXTS, labels, "the {} sat", multi_label=multi_label)
    for ours, row in zip(found, expected, strict=True):
        assert _as_pairs(ours) == list(zip(row["labels"], row["scores"], strict=True))


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_an_unknown_word_is_a_word_of_its_own(folders, models, aggregation):
    theirs = _pipeline("token-classification", folders["ner"])
    text = "the Łódź sat 日本 on-Zürich"
    tokens = models["ner"].tokenizer.encode(text)
    assert tokens.count(models["ner"].tokenizer.number("[UNK]")) > 2
    expected = [
        (e["entity_group"], e["start"], e["end"], pytest.approx(e["score"], abs=2e-5))
        for e in theirs(text, aggregation_strategy=aggregation, ignore_labels=[])
    ]
    (found,) = gptrs.tag(models["ner"], [text], aggregation, ignored=[])
    assert [(e.label, e.start, e.end, e.score) for e in found] == expected


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_names_in_texts(folders, models, aggregation):
    theirs = _pipeline("token-classification", folders["ner"])
    key = "entity" if aggregation == "none" else "entity_group"
    for ignored in (["O"], []):
        expected = [
            [(e[key], e["start"], e["end"], e["score"]) for e in row]
            for row in theirs(TEXTS, aggregation_strategy=aggregation, ignore_labels=ignored)
        ]
        found = gptrs.tag(models["ner"], TEXTS, aggregation, 2, ignored=ignored)
        assert [
            [(e.label, e.start, e.end, pytest.approx(e.score, abs=2e-5)) for e in row]
            for row in found
        ] == expected
        for text, row in zip(TEXTS, found, strict=True):
            assert all(each.text == text[each.start : each.end] for each in row)


def test_masked_words(folders, models):
    theirs = _pipeline("fill-mask", folders["words"])
    texts = ["the [MASK] sat", "a dog [MASK] on [MASK]"]
    found = gptrs.fill(models["words"], texts, top_k=4, batch_size=1)
    assert [len(places) for places in found] == [1, 2]
    expected = [[theirs(texts[0], top_k=4)], theirs(texts[1], top_k=4)]
    for places, their_places in zip(found, expected, strict=True):
        for best, their_best in zip(places, their_places, strict=True):
            ours = [(e.token, pytest.approx(e.score, abs=2e-5)) for e in best]
            assert ours == [(e["token"], e["score"]) for e in their_best]
            assert [e.text for e in best] == [e["token_str"] for e in their_best]


def test_wrong_calls_are_refused(models, tmp_path):
    nli, ner, words = models["nli"], models["ner"], models["words"]
    refused = [
        (lambda: gptrs.classify(nli, "one text"), UsageError, "a list of texts is needed"),
        (lambda: gptrs.classify(nli, []), UsageError, "at least 1 text"),
        (lambda: gptrs.classify(words, ["a"]), ModelError, "has no classes of texts; it offers"),
        (lambda: gptrs.rank(nli, "a", ["b"]), ModelError, "3 classes, a reranker gives it one"),
        (lambda: gptrs.rank(nli, "a", []), UsageError, "needs a list of documents"),
        (lambda: gptrs.zero_shot(nli, ["a"], ["b"], "no place"), UsageError, "needs `{}` once"),
        (
            lambda: gptrs.zero_shot(models["ranker"], ["a"], ["b"]),
            ModelError,
            "no class that begins with `entail`",
        ),
        (lambda: gptrs.tag(ner, ["a " * 40]), UsageError, "text 0 has 42 tokens.*1 to 24"),
        (lambda: gptrs.tag(ner, ["a"], "best"), UsageError, "aggregation is one of"),
        (lambda: gptrs.fill(words, ["the cat"]), UsageError, "no masked position; write `.MASK.`"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()


def test_a_model_of_whatever_backend(folders, backend):
    model = gptrs.load_model(folders["nli"], backend=backend.name)
    ours = gptrs.classify(model, PAIRS, 4)
    expected = gptrs.classify(gptrs.load_model(folders["nli"], backend="ref"), PAIRS)
    assert [_as_pairs(row) for row in ours] == [[(e.label, e.score) for e in r] for r in expected]


def test_a_mask_that_no_file_names_is_the_usual_one(folders, tmp_path):
    folder = save_tiny_head(tmp_path / "m", WORD)
    write_json(folder / "tokenizer_config.json", {})
    assert settings_of(folder)["architectures"] == ["BertForMaskedLM"]
    (found,) = gptrs.fill(gptrs.load_model(folder, backend="ref"), ["the [MASK] sat"])
    assert np.isclose(sum(each.score for each in found[0]), 1, atol=1)
