"""A model of each family computes what the reference backend does, on any kind of processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from checkpoint.test_every_kind import result_of
from fuzzing.tiny_models import save_tiny_model
from gptrs.plugins.manager import get_backend
from gptrs_runtime.load import load_model

FAMILIES = (
    *("gpt2", "llama", "mamba2", "bert", "vit", "resnet", "clip", "bart", "whisper", "wav2vec2"),
)


@pytest.mark.paths
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_agrees_with_the_reference(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(5)

    def weight(shape: Sequence[int]) -> np.ndarray:
        drawn = random.normal(scale=0.5, size=shape).astype(np.float32)
        return np.abs(drawn) if drawn.ndim == 1 else drawn  # variances are among them

    folder = save_tiny_model(tmp_path / "m", kind, get_backend("ref"), weight=weight)
    expected = np.asarray(result_of(load_model(folder, "ref")))
    found = np.asarray(result_of(load_model(folder, "numba")))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
