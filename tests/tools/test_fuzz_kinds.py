"""A few drawn models agree with transformers; a wrong one is told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")
import fuzz_kinds


@pytest.mark.long
def test_drawn_models_agree(capsys):
    assert fuzz_kinds.main(["--models", "5", "--seed", "7"]) == 0
    assert "0 wrong" in capsys.readouterr().out


@pytest.mark.long
def test_a_model_that_differs_is_told(capsys, monkeypatch):
    monkeypatch.setattr(fuzz_kinds, "MOST_ERROR", -1.0)
    assert fuzz_kinds.main(["--models", "1"]) == 1
    assert "seed 0, Llama of" in capsys.readouterr().out


def test_each_setting_of_each_kind_is_drawn():
    found = [fuzz_kinds.drawn(seed) for seed in range(60 * len(fuzz_kinds.KINDS))]
    for kind, choices in fuzz_kinds.KINDS.items():
        for name, values in choices.items():
            seen = [settings[name] for which, settings in found if which == kind]
            assert all(value in seen for value in values)
