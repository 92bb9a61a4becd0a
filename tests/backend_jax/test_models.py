"""Every kind of model computes on JAX what it computes on `ref`, with the same greedy tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import Backend
from gptrs.backend.settings import BackendSettings
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager

pytest.importorskip("torch", reason="the directories of models need torch")
pytest.importorskip("transformers", reason="the directories of models need transformers")

from backend_jax.mesh_models import UNOPTIMIZED
from backend_jax.model_kinds import ALIKE, CASES, HEADS, SAVES, computed

TOLERANCE = 1e-4
"""Largest error of a number, relative to the largest of its kind."""
QUICK = ("gpt2", "t5", "vit", "bert of words")
"""The cases that are not `exhaustive`."""


def test_every_kind_has_a_case() -> None:
    kinds = {plugin.name for plugin in manager().descriptions(ModelPlugin)}
    missing = kinds - {name.split()[0] for name in CASES} - set(ALIKE)
    assert not missing, f"add a case of {', '.join(sorted(missing))} to model_kinds.py"


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive)
        for name in (*CASES, *HEADS)
    ],
)
def test_numbers_and_tokens_are_those_of_ref(
    name: str, tmp_path: Path, jax_backend: Backend
) -> None:
    SAVES[name](tmp_path / "model")
    settings = BackendSettings(options=() if name in QUICK else tuple(UNOPTIMIZED.items()))
    ours, theirs = (
        computed(gptrs.load_model(tmp_path / "model", backend=backend))
        for backend in (manager().get_backend(jax_backend.name, settings=settings), "ref")
    )
    assert theirs, "something must be computed"
    assert ours.keys() == theirs.keys()
    for what, expected in theirs.items():
        found = ours[what]
        assert found.shape == expected.shape
        if expected.dtype.kind == "i":
            assert found.tolist() == expected.tolist(), what
        else:
            assert np.isfinite(expected).all(), what
            assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max(), what
