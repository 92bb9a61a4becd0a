"""Activations by transformers' names are transformers' own."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.nn import ACTIVATIONS

torch = pytest.importorskip("torch", reason="parity needs torch")
activations = pytest.importorskip("transformers.activations", reason="parity needs transformers")

WITH_WEIGHTS = {"prelu", "xielu"}


def test_all_names_are_known():
    assert activations.ACT2CLS.keys() - ACTIVATIONS.keys() == WITH_WEIGHTS
    assert not ACTIVATIONS.keys() - activations.ACT2CLS.keys()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_that_of_transformers(name, backend):
    x = np.linspace(-12, 12, 241, dtype=np.float32).reshape(1, 241)
    theirs = activations.ACT2FN[name](torch.from_numpy(x)).numpy()
    with gptrs.use_backend(backend):
        found = ACTIVATIONS[name](gptrs.tensor(x)).numpy()
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6)
