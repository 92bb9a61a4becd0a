"""`gptrs classify`, `rank`, `tag` and `fill`: what Python says, in tables and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import gptrs as library
from runtime.tiny_heads import save_tiny_head

NLI = ("contradiction", "neutral", "entailment")
CASES = {
    "nli": ("ForSequenceClassification", NLI),
    "ranker": ("ForSequenceClassification", ("score",)),
    "ner": ("ForTokenClassification", ("O", "B-PER", "I-PER")),
    "words": ("ForMaskedLM", ()),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A directory of each head."""
    root = tmp_path_factory.mktemp("texts")
    return {name: save_tiny_head(root / name, *case) for name, case in CASES.items()}


def _model(folders, name):
    return library.load_model(folders[name], backend="ref")


def test_classes(gptrs, folders):
    expected = library.classify(_model(folders, "nli"), [("the cat", "a dog"), ("red", "blue")])
    pairs = ("--text", "the cat", "--text", "red", "--pair", "a dog", "--pair", "blue")
    asked = ("classify", "--model", folders["nli"], *pairs, "--backend", "ref")
    fields = gptrs(*asked, "--json").json
    assert fields["classes"] == [[structs.asdict(e) for e in row] for row in expected]
    assert (fields["texts"], fields["pairs"]) == (["the cat", "red"], ["a dog", "blue"])
    result = gptrs(*asked)
    header, *lines = result.out.splitlines()
    assert header.split() == ["#", "CLASS", "SCORE", "TEXT"]
    best = expected[0][0]
    assert lines[0].split() == ["0", best.label, f"{best.score:.4f}", "the", "cat"]
    assert len(lines) == 6
    assert result.err.startswith("classes of 2 texts in ")


def test_labels_of_ones_own(gptrs, folders):
    labels, template = ["cat", "dog"], "a {} sat"
    expected = library.zero_shot(_model(folders, "nli"), ["the cat"], labels, template)
    asked = ("--label", "cat", "--label", "dog", "--template", template, "--backend", "ref")
    model = folders["nli"]
    fields = gptrs("classify", "--model", model, "--text", "the cat", *asked, "--json").json
    assert fields["classes"] == [[structs.asdict(e) for e in row] for row in expected]


def test_ranking(gptrs, folders):
    texts = ["the cat sat", "a dog", "blue"]
    expected = library.rank(_model(folders, "ranker"), "red", texts)
    given = [part for text in texts for part in ("--text", text)]
    asked = ("rank", "--model", folders["ranker"], "--query", "red", *given, "--backend", "ref")
    assert gptrs(*asked, "--json").json["ranking"] == [structs.asdict(e) for e in expected]
    lines = gptrs(*asked, "--top", 2).out.splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines[1:]] == [e.text for e in expected[:2]]


def test_names(gptrs, folders):
    (expected,) = library.tag(_model(folders, "ner"), ["the cat sat on two mats"])
    asked = ("tag", "--model", folders["ner"], "--text", "the cat sat on two mats")
    fields = gptrs(*asked, "--backend", "ref", "--json").json
    assert fields["entities"] == [[structs.asdict(e) for e in expected]]
    lines = gptrs(*asked, "--backend", "ref").out.splitlines()[1:]
    assert [line.split()[3] for line in lines] == [f"{e.start}-{e.end}" for e in expected]


def test_masked_words(gptrs, folders):
    (expected,) = library.fill(_model(folders, "words"), ["the [MASK] sat"], top_k=3)
    asked = ("fill", "--model", folders["words"], "--text", "the [MASK] sat", "--top", 3)
    fields = gptrs(*asked, "--backend", "ref", "--json").json
    assert fields["fillings"] == [[[structs.asdict(e) for e in best] for best in expected]]
    lines = gptrs(*asked, "--backend", "ref").out.splitlines()[1:]
    assert [int(line.split()[3]) for line in lines] == [e.token for e in expected[0]]


REFUSED = [
    (("classify", "--text", "a", "--pair", "b", "--pair", "c"), 2, "2 times `--pair` for 1 text"),
    (("classify", "--text", "a", "--pair", "b", "--label", "c"), 2, "exclude each other"),
    (("classify", "--text", "a", "--multi-label"), 2, "are for `--label`, which is missing"),
    (("tag", "--text", "a"), 3, "has no classes of tokens; it offers"),
    (("fill", "--text", "a"), 3, "predicts no masked tokens; it offers"),
    (("rank", "--query", "a", "--text", "b"), 3, "gives a pair 3 classes"),
    (("generate", "a"), 3, "(`gptrs classify`, `gptrs embed`)"),
    (("chat",), 3, "cannot generate text; it offers: hidden_states, text_classifier"),
]


@pytest.mark.parametrize(("asked", "code", "message"), REFUSED)
def test_what_does_not_fit_is_refused(gptrs, folders, asked, code, message):
    result = gptrs(*asked, "--model", folders["nli"])
    assert result.code == code, result.err
    assert message in " ".join(result.err.split())


def test_each_head_is_shown(gptrs, folders):
    shown = gptrs("inspect", folders["ranker"], "--json").json["model"]
    assert shown["architecture"].endswith("ForSequenceClassification")
    assert (shown["classes"], shown["commands"]) == (1, "classify and rank")
    assert "commands tag" in gptrs("inspect", folders["ner"]).out
    listed = gptrs("models", "list", folders["words"], "--json").json["models"]
    assert listed[-1]["architecture"].endswith("ForMaskedLM")
    assert "ForMaskedLM" in gptrs("models", "list", folders["words"]).out
