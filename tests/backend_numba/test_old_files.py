"""Models of old files, of whose weights forms are kept, compute what they do at once.

Weights of bf16 and f16 are widened when they are needed, or come from what was kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import gptrs
from backend_numba.old_file_results import result
from fuzzing.tiny_models import save_tiny_model
from gptrs.ir import dtypes
from gptrs_backend_numba.kept_weights.weight_store import VARIABLE
from gptrs_backend_ref.backend import create

SCRIPT = Path(__file__).with_name("old_file_results.py")
KINDS = ("mamba2", "mamba", "gpt2", "deberta-v2", "beit", "convnext", "t5", "wav2vec2")
"""Programs derive weights of these from others: decays, tables of biases, convolutions."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16], ids=str)
def test_another_process_computes_the_same(dtype: dtypes.DType, tmp_path: Path) -> None:
    rng, expected = np.random.default_rng(3), {}

    def weight(shape: Sequence[int]) -> np.ndarray:
        return rng.normal(0.3, 0.4, shape).astype(dtype.numpy)

    for kind in KINDS:
        folder = save_tiny_model(tmp_path / kind, kind, create(), weight=weight)
        expected[str(folder)] = result(gptrs.load_model(folder, "ref"))
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: str(1 << 30)}
    for number in range(2):
        results = tmp_path / f"{number}.npz"
        command = [sys.executable, str(SCRIPT), str(tmp_path / "cache"), str(results), *expected]
        subprocess.run(command, env={**os.environ, **settings}, check=True)
        with np.load(results) as found:
            for folder, wanted in expected.items():
                error = np.abs(found[folder] - wanted).max() / np.abs(wanted).max()
                assert error <= 1e-4, f"{Path(folder).name} in process {number}"
    kept = list((tmp_path / "cache" / "numba" / "weights").glob("*/*/*-*"))
    assert len(kept) > 10 * len(KINDS), "forms of weights"
