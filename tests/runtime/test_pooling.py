"""Pooling gives what the formulas of sentence-transformers give, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gptrs_runtime.embedding.modules import MODES, Normalize, Pooling

LENGTHS = (5, 1, 3)


@pytest.fixture
def vectors() -> np.ndarray:
    """Of three texts; those of padding are large, so that one that counts is noticed."""
    found = np.random.default_rng(2).normal(0, 2, (3, 5, 4)).astype(np.float32)
    return np.where(mask_of(LENGTHS)[..., np.newaxis], found, np.float32(1e6))


def mask_of(lengths: tuple[int, ...]) -> np.ndarray:
    return np.arange(5) < np.array(lengths)[:, np.newaxis]


def by_formula(mode: str, tokens: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """The formula in f64, for the tokens of one text, each with its position."""
    rows = [row.astype(np.float64) for _, row in tokens]
    match mode:
        case "cls":
            return rows[0]
        case "lasttoken":
            return rows[-1]
        case "max":
            return np.stack(rows).max(0)
        case "mean":
            return np.sum(rows, axis=0) / len(rows)
        case "mean_sqrt_len_tokens":
            return np.sum(rows, axis=0) / math.sqrt(len(rows))
        case "weightedmean":
            weights = [position + 1 for position, _ in tokens]
            return np.average(rows, axis=0, weights=weights)
    raise AssertionError(mode)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode(mode, vectors):
    found = Pooling((mode,))(vectors, mask_of(LENGTHS))
    assert found.dtype == np.float32
    for row, length in enumerate(LENGTHS):
        expected = by_formula(mode, list(enumerate(vectors[row, :length])))
        np.testing.assert_allclose(found[row], expected, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_that_is_left_out(mode, vectors):
    mask = mask_of((5, 4, 3))
    vectors = np.where(vectors > 1e5, np.float32(0.5), vectors)
    found = Pooling((mode,), include_prompt=False)(vectors, mask, prompt=2)
    for row, length in enumerate((5, 4, 3)):
        expected = by_formula(mode, list(enumerate(vectors[row, :length]))[2:])
        np.testing.assert_allclose(found[row], expected, rtol=1e-6)
    assert mask.sum() == 12, "the mask of the caller has changed"
    included = Pooling((mode,))(vectors, mask, prompt=2)
    np.testing.assert_array_equal(included, Pooling((mode,))(vectors, mask))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_left_gives_zeros_or_the_first_vector(mode, vectors):
    found = Pooling((mode,), include_prompt=False)(vectors, mask_of(LENGTHS), prompt=4)
    np.testing.assert_array_equal(found[1:], vectors[1:, 0] if mode == "cls" else 0)
    assert (found[0] != 0).all()


def test_several_modes_stand_one_after_another(vectors):
    mask = mask_of(LENGTHS)
    found = Pooling(("max", "cls"))(vectors, mask)
    parts = [Pooling((mode,))(vectors, mask) for mode in ("max", "cls")]
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))


def test_torch_agrees_on_lengths():
    torch = pytest.importorskip("torch", reason="the comparison needs torch")
    x = np.random.default_rng(4).normal(size=(4, 6)).astype(np.float32)
    x[1] = 0
    x[2] *= np.float32(1e-13)
    x[3] *= np.float32(1e25)
    expected = torch.nn.functional.normalize(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(Normalize()(x), expected, rtol=1e-6)
