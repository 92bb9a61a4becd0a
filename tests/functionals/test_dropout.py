"""Dropout drops the share it is asked to, keeps the mean, and only while training."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import UnsupportedError, UsageError
from gptrs.ir import dtypes


def _seed(key: int, counter: int = 0) -> gptrs.Tensor:
    return gptrs.tensor([key, counter], dtypes.ui64)


def _ones() -> gptrs.Tensor:
    return gptrs.tensor(np.ones((40, 500), np.float32))


@pytest.fixture(autouse=True)
def _on_backend(backend):
    with gptrs.use_backend(backend):
        try:
            F.dropout(_ones(), 0.5, _seed(1), training=True).numpy()
        except UnsupportedError as error:
            assert backend.name != "ref"
            pytest.skip(str(error))
        yield


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_and_the_mean(probability):
    found = F.dropout(_ones(), probability, _seed(1), training=True).numpy()
    kept = found != 0
    # Six standard deviations of a binomial count.
    margin = 6 * np.sqrt(probability * (1 - probability) / kept.size)
    assert abs(kept.mean() - (1 - probability)) < margin
    np.testing.assert_array_equal(found[kept], np.float32(1 / (1 - probability)))


def test_nothing_happens_outside_training():
    x = gptrs.tensor([1.0, np.nan])
    assert F.dropout(x, 0.5) is x
    assert F.dropout(x, 0.5, _seed(1)) is x


def test_probability_zero_keeps_everything():
    x = gptrs.tensor(np.array([1.5, -np.inf, np.nan, 0.0], np.float32))
    np.testing.assert_array_equal(F.dropout(x, 0.0, _seed(1), training=True).numpy(), x.numpy())


def test_what_is_dropped_is_zero_whatever_it_was():
    x = gptrs.tensor(np.full(200, np.nan, np.float32))
    found = F.dropout(x, 0.5, _seed(3), training=True).numpy()
    assert set(np.isnan(found)) == {True, False}
    assert (found[~np.isnan(found)] == 0).all()


def test_a_seed_decides():
    first, again, other, later = (
        F.dropout(_ones(), 0.5, _seed(*pair), training=True).numpy()
        for pair in ((1, 0), (1, 0), (2, 0), (1, 5000))
    )
    np.testing.assert_array_equal(first, again)
    assert 0.4 < (first == other).mean() < 0.6
    assert 0.4 < (first == later).mean() < 0.6


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_types_and_shapes_are_kept(dtype, shape):
    x = F.cast(gptrs.tensor(np.ones(shape, np.float32)), dtype)
    found = F.dropout(x, 0.5, _seed(1), training=True)
    assert found.type == x.type
    assert set(np.unique(found.numpy().astype(np.float64))) <= {0.0, 2.0}


HINT = "`gptrs.tensor([key, counter], dtypes.ui64)` makes one"
REFUSALS = [
    (lambda: F.dropout(gptrs.tensor([1]), 0.5), "needs a floating-point `x`, got `si64[1]`"),
    (lambda: F.dropout(_ones(), 1.0), "needs a probability in [0, 1), got 1.0"),
    (lambda: F.dropout(_ones(), -0.1), "needs a probability in [0, 1), got -0.1"),
    (lambda: F.dropout(_ones(), float("nan")), "needs a probability in [0, 1), got nan"),
    (lambda: F.dropout(_ones(), 0.5, training=True), "needs a seed of `ui64[2]`, got none"),
    (
        lambda: F.dropout(_ones(), 0.5, gptrs.tensor([1, 2]), training=True),
        "needs a seed of `ui64[2]`, got `si64[2]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message == f"`dropout` {message}"
    assert "seed" not in message or caught.value.hint == HINT
