"""Rounding of weights by groups: each code is the nearest one, and a search never does worse."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.errors import CheckpointError, UsageError
from gptrs_runtime.quantizing.plan import WEIGHT_TYPES, weight_type
from gptrs_runtime.quantizing.quantizing_source import made_parts
from gptrs_runtime.quantizing.tensor_rounding import (
    Rounded,
    RoundedTensor,
    round_affine,
    round_symmetric,
    round_with_zero_point,
    rounded_to_8_bits,
)

WAYS = {
    "symmetric": round_symmetric,
    "affine": round_affine,
    "zero point": round_with_zero_point,
}


def groups(seed: int = 0) -> np.ndarray:
    """Return groups of normal numbers, one with an outlier, one above zero, one of zeros."""
    drawn = np.random.default_rng(seed).normal(0, 0.1, (40, 32)).astype(np.float32)
    drawn[3, 7] = 2.0
    drawn[4] = np.abs(drawn[4]) + 0.5
    drawn[5] = 0
    return drawn


def formula(found: Rounded) -> np.ndarray:
    parts = {name: array.astype(np.float32) for name, array in found.parts.items()}
    if "bias" in parts:
        return parts["codes"] * parts["scale"] + parts["bias"]
    return (parts["codes"] - parts.get("zero_point", np.float32(0))) * parts["scale"]


def errors(found: Rounded, weights: np.ndarray) -> np.ndarray:
    return np.square(found.values.astype(np.float64) - weights).sum(axis=1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_those_of_the_parts_and_a_search_is_no_worse(way: str, bits: int) -> None:
    weights = groups()
    nearest, searched = (WAYS[way](weights, bits, r) for r in ("nearest", "search"))
    for found in (nearest, searched):
        np.testing.assert_array_equal(found.values, formula(found))
        codes = found.parts["codes"].astype(np.int64)
        low = -(2 ** (bits - 1)) if way == "symmetric" else 0
        assert codes.min() >= low
        assert codes.max() < low + 2**bits
        assert not found.values[5].any()
    assert np.all(errors(searched, weights) <= errors(nearest, weights) * (1 + 1e-5))
    if bits == 4:
        sums = [np.delete(errors(found, weights), 3).sum() for found in (nearest, searched)]
        assert sums[1] < 0.97 * sums[0]


@pytest.mark.parametrize("bits", [4, 8])
def test_nearest_is_within_half_a_step(bits: int) -> None:
    weights = groups(1)
    found = round_symmetric(weights, bits, "nearest")
    step = found.parts["scale"].astype(np.float32)
    slack = np.abs(weights).max(axis=1, keepdims=True) * 2.0**-10  # scales are rounded to f16
    assert np.all(np.abs(found.values - weights) <= step / 2 + slack)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_parts_of_a_tensor_mean_its_values(name: str, turned: bool) -> None:
    """Of more rows than are rounded at a time; the errors are counted over all of them."""
    weights = np.random.default_rng(2).normal(0, 1, (2050, 512)).astype(np.float32)
    stored = weights.T.copy() if turned else weights
    rounded = RoundedTensor(
        "w", lambda: stored, (2050, 512), WEIGHT_TYPES[name], "nearest", turned=turned
    )
    chunks = list(rounded.chunks())
    assert len(chunks) > 1
    values = np.concatenate([rows for _, rows in chunks])
    error = rounded.error()
    exact = np.sqrt(np.square(values - weights).sum() / np.square(weights).sum())
    assert error.relative_rms == pytest.approx(exact, rel=1e-4)
    assert error.max_error == pytest.approx(np.abs(values - weights).max(), rel=1e-5)
    described = rounded.described()
    parts = made_parts(rounded)
    assert {part: (array.shape, array.dtype) for part, array in parts.items()} == {
        part: (type.shape, type.dtype.numpy) for part, type in described.parts.items()
    }
    nbytes = sum(array.nbytes for part, array in parts.items() if part != "zero_point")
    assert error.bits * weights.size / 8 == pytest.approx(nbytes, rel=0.05)
    if described.bits == 4:
        codes = parts["codes"]
        parts["codes"] = np.stack([codes & 15, codes >> 4], axis=-1).reshape(2050, 512)
    np.testing.assert_array_equal(described.values(parts), values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_weights_that_no_scale_holds_are_refused(bad: float) -> None:
    weights = np.ones((16, 32), np.float32)
    weights[3, 4] = bad
    rounded = RoundedTensor("w", lambda: weights, (16, 32), WEIGHT_TYPES["q4"], "search")
    with pytest.raises(CheckpointError, match="cannot be quantized"):
        list(rounded.chunks())


def test_unknown_types_and_groups_are_refused() -> None:
    with pytest.raises(UsageError, match="q3"):
        weight_type("q3")
    for size in (4, 12, 2048):
        with pytest.raises(UsageError, match=str(size)):
            WEIGHT_TYPES["q4"].grouped(size)
    assert WEIGHT_TYPES["q4"].grouped(0).group_of(96) == 96


def test_inputs_are_rounded_as_kernels_do() -> None:
    """The largest of a group of 32 has the code 127, and all others the nearest one."""
    inputs = np.random.default_rng(0).standard_normal((96, 5)).astype(np.float32)
    found = rounded_to_8_bits(inputs).reshape(3, 32, 5)
    groups = inputs.reshape(3, 32, 5)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    codes = found * 127 / largest
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    np.testing.assert_allclose(np.abs(codes).max(axis=1), 127, atol=1e-4)
    assert (np.abs(found - groups) <= largest / 254 * (1 + 1e-5)).all()
