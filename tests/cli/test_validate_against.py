"""`gptrs validate --against`: figures of two models, by their definitions."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs as library
from runtime.tiny_bert import save_tiny_bert

TEXT = "The cat sat on the mat, and the dog looked at the cat for a long time.\n" * 3


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def tiny_bert(tmp_path):
    return save_tiny_bert(tmp_path / "bert")


def test_a_model_is_no_way_from_itself(gptrs, text):
    report = gptrs("validate", "--against", "demo", "--text", text, "--json").json
    assert (report["kl"], report["top1"], report["cosine"]) == (0, 1, None)
    assert report["perplexity"] == report["reference_perplexity"]


def test_figures_of_quantized_weights(gptrs, text):
    options = (
        "validate",
        "--against",
        "demo",
        "--text",
        text,
        "--window",
        "512",
        "--weights",
        "q4",
    )
    report = gptrs(*options, "--backend", "ref", "--json").json
    model = library.load_model(backend="ref", weights="q4")
    reference = library.load_model(backend="ref")
    tokens = np.array(model.prompt_tokens(TEXT))
    assert report["scored"] == len(tokens) - 1 < 511
    p, q = (
        np.exp(each.forward(tokens[np.newaxis])[0, :-1].astype(np.float64))
        for each in (model, reference)
    )
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    kl = (q * np.log(q / p)).sum(1)
    assert report["kl"] == pytest.approx(kl.mean(), rel=1e-4)
    assert 0.001 < report["kl"] < 0.2
    assert report["kl_worst"] == pytest.approx(np.quantile(kl, 0.99), rel=1e-4)
    assert report["top1"] == pytest.approx((p.argmax(1) == q.argmax(1)).mean())
    rows = np.arange(len(tokens) - 1)
    for name, each in (("perplexity", p), ("reference_perplexity", q)):
        wanted = np.exp(-np.log(each[rows, tokens[1:]]).mean())
        assert report[name] == pytest.approx(wanted, rel=1e-5)
    assert report["weights"] == "q4"


def test_what_is_said(gptrs, text, tiny_bert):
    result = gptrs("validate", "--against", "demo", "--text", text)
    assert "KL divergence: 0.000000" in result.out
    assert "the likeliest token is the same: 100.00%" in result.out
    options = ("--model", tiny_bert, "--against", tiny_bert, "--text", text, "--backend", "ref")
    assert "least 1.000000" in gptrs("validate", *options).out


def test_what_does_not_fit_is_refused(gptrs, text, tiny_bert):
    for options, said in (
        (("--against", "demo"), "--text FILE"),
        (("--text", text), "--against MODEL"),
        (("--against", "demo", "--text", text, "--tokens", "1"), "--text FILE"),
        (("--against", "demo", "--text", text, "--window", "9999"), "context"),
    ):
        result = gptrs("validate", *options)
        assert result.code == 2
        assert said in result.err
    result = gptrs("validate", "--against", tiny_bert, "--text", text)
    assert result.code != 0
    assert "cannot generate text" in result.err
