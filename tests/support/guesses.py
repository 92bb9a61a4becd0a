"""Tokens guessed ahead, however little it pays: whether they are depends on measured times."""

from __future__ import annotations

import random

import pytest

from gptrs_runtime.generation.guessing import guesser


def guess_any_length(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let texts guess as many tokens as `seed` draws."""
    rng = random.Random(seed)
    monkeypatch.setattr(
        guesser, "best_length", lambda odds, most, texts, seconds: rng.randint(0, most)
    )
    monkeypatch.setattr(guesser.Balance, "allows", lambda balance, tokens: True)
