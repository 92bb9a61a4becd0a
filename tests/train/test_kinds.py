"""Kinds of language models learn: packed texts are apart, adapters begin as the model."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gptrs
from fuzzing.tiny_models import save_tiny_model
from gptrs.capture.execute import use_backend
from gptrs.errors import ModelError
from gptrs_models.kinds import KINDS
from gptrs_runtime.sources.find_model import find_model
from gptrs_train.learner import Batch, Learner, LowRank

DIFFERENT = ("gpt2", "gemma2", "gpt_oss", "deepseek_v3", "lfm2", "mamba")
"""Learned positions; windows and soft caps; sinks and experts; latent attention; states of a
convolution; a recurrent state."""
OTHERS = sorted({kind for family in KINDS for kind in family.kinds} - set(DIFFERENT))
pytestmark = pytest.mark.long
CUT = (4, 7)
"""The second text of each row begins here."""


def weight(shape):
    rng = np.random.default_rng(math.prod(shape))
    return (rng.normal(0, 0.3, shape) + 0.5 * (len(shape) == 1)).astype(np.float32)


def learner_of(folder, kind, backend, what):
    try:
        return Learner(find_model(folder), backend, what)
    except ModelError as error:
        if "does not continue texts" in error.message:
            pytest.skip(f"{kind} is no language model")
        raise


@pytest.mark.parametrize(
    "kind",
    [*DIFFERENT, *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in OTHERS)],
)
def test_packed_texts_are_learnt_as_alone(kind, reference, tmp_path):
    try:
        save_tiny_model(tmp_path, kind, reference, weight=weight)
    except LookupError as error:  # kinds of images that have tests of their own
        pytest.skip(str(error))
    rng = np.random.default_rng(1)
    tokens, targets = (rng.integers(3, 20, (2, 10)) for _ in range(2))
    weights = rng.integers(0, 2, (2, 10)).astype(np.float32)
    positions = np.array([[*range(n), *range(10 - n)] for n in CUT])
    with use_backend(reference):
        learner = learner_of(tmp_path, kind, reference, ["*"])
        loss = gptrs.jit(gptrs.value_and_grad(learner.loss))
        value, grads = loss(learner.trained, Batch(tokens, targets, weights, positions))
        alone = 0.0
        sums = {name: np.zeros(array.shape) for name, array in learner.trained.items()}
        for row, cut in enumerate(CUT):
            for part in (slice(0, cut), slice(cut, 10)):
                own = (x[row : row + 1, part] for x in (tokens, targets, weights))
                each, of_it = loss(learner.trained, Batch(*own, None))
                alone += each.item()
                for name, array in of_it.items():
                    sums[name] += array.numpy()
        assert value.item() == pytest.approx(alone, rel=1e-4)
        for name, array in sums.items():
            largest = np.abs(array).max()
            np.testing.assert_allclose(
                grads[name].numpy(), array, rtol=1e-3, atol=1e-3 * largest + 1e-6, err_msg=name
            )
        adapted = learner_of(tmp_path, kind, reference, LowRank(2, 4.0))
        begun = gptrs.jit(adapted.loss)(adapted.trained, Batch(tokens, targets, weights, positions))
        assert begun.item() == pytest.approx(value.item(), rel=1e-4)
