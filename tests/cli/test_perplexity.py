"""`gptrs perplexity`: figures for people and for scripts."""

from __future__ import annotations

import math

import pytest

TEXT = "the cat and the dog and the bird"


@pytest.fixture
def run(gptrs, model_directory):
    return lambda *arguments: gptrs("perplexity", "--model", model_directory, *arguments)


def test_figures_agree(run):
    found = run(TEXT, "--window", 8, "--stride", 4, "--json").json
    assert found["perplexity"] == pytest.approx(math.exp(found["nll"]))
    assert (found["window"], found["stride"]) == (8, 4)
    assert found["scored"] == found["tokens"] - 1
    bits = found["nll"] * found["scored"] / math.log(2) / len(TEXT)
    assert found["bits_per_byte"] == pytest.approx(bits)
    shown = run(TEXT, "--window", 8, "--stride", 4)
    assert shown.out.startswith(f"perplexity {found['perplexity']:.4f} +- ")
    assert f"{found['windows']} windows of 8 tokens" in shown.err


def test_a_text_and_a_window_are_checked(run):
    assert "at least 2 tokens" in run("a").err
    assert "2 to 64 tokens, the context; got 65" in run(TEXT, "--window", 65).err


def test_a_single_token_has_no_standard_error(run):
    shown = run("the the")
    assert "1 of 2 tokens scored" in shown.err
    assert "+-" not in shown.out
    assert run("the the", "--json").json["standard_error"] is None
