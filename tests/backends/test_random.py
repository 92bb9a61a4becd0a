"""Random numbers: the published vectors, the stream, and how the numbers are distributed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

import gptrs
from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.capture import primitives
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.random import RngNormal, RngUniform
from gptrs_backend_ref.kernels import quantization as reference
from gptrs_conformance.cases.quantization import inverse_normal, normal, philox, words
from gptrs_conformance.numerics import decode, rounded

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

PUBLISHED = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Counter, key, result: the known answers for philox4x32-10 that Random123 is tested with."""


def number(text: str) -> int:
    """Words of 32 bits, the least significant first, as one number."""
    return sum(int(word, 16) << 32 * place for place, word in enumerate(text.split()))


def seed(key: int, counter: int) -> np.ndarray:
    return np.array([key, counter], np.uint64)


@pytest.mark.parametrize(("counter", "key", "answer"), PUBLISHED)
def test_published_vectors(counter: str, key: str, answer: str) -> None:
    expected = [int(word, 16) for word in answer.split()]
    assert philox(number(counter), number(key)) == expected
    columns = [np.array([int(word, 16)], np.uint64) for word in counter.split()]
    assert reference.philox(columns, np.uint64(number(key))).tolist() == [expected]


def test_published_vector_through_the_op(backend: Backend) -> None:
    expected = [int(word, 16) for word in PUBLISHED[0][2].split()]
    assert run_op(backend, RngUniform((4,), dtypes.ui32), seed(0, 0)).tolist() == expected
    pairs = [expected[0] + (expected[1] << 32), expected[2] + (expected[3] << 32)]
    assert run_op(backend, RngUniform((2,), dtypes.ui64), seed(0, 0)).tolist() == pairs


@pytest.mark.parametrize("op", [RngUniform, RngNormal])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_two_halves_are_one_draw(
    backend: Backend, op: type[RngUniform | RngNormal], dtype: DType
) -> None:
    blocks = 16 if dtype is dtypes.f64 else 8
    whole = run_op(backend, op((4, 16), dtype), seed(5, 2**64 - 3))
    first = run_op(backend, op((32,), dtype), seed(5, 2**64 - 3))
    assert whole.reshape(-1)[:32].tobytes() == first.tobytes()
    # A counter that has passed 2^64 cannot be given, so the second half is drawn below it.
    whole = run_op(backend, op((64,), dtype), seed(5, 100))
    second = run_op(backend, op((32,), dtype), seed(5, 100 + blocks))
    assert whole[32:].tobytes() == second.tobytes()


def test_key_and_counter_both_matter(backend: Backend) -> None:
    draws = {
        run_op(backend, RngUniform((8,), dtypes.ui32), seed(*pair)).tobytes()
        for pair in ((0, 0), (1, 0), (2**32, 0), (0, 2), (0, 2**32), (2**63, 2**63))
    }
    assert len(draws) == 6


def test_a_draw_does_not_depend_on_its_shape(backend: Backend) -> None:
    flat = run_op(backend, RngNormal((30,), dtypes.f32), seed(1, 2))
    shaped = run_op(backend, RngNormal((2, 3, 1, 5), dtypes.f32), seed(1, 2))
    assert flat.tobytes() == shaped.tobytes()


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16, dtypes.f32, dtypes.f64], ids=str)
def test_uniform_numbers_are_uniform(backend: Backend, dtype: DType) -> None:
    x = decode(run_op(backend, RngUniform((20000,), dtype), seed(2024, 1)))
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.008
    assert abs(x.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.02
    counts = np.histogram(x, 16, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("dtype", [dtypes.f8e4m3, dtypes.f8e5m2], ids=str)
def test_uniform_numbers_of_few_bits_take_every_value(backend: Backend, dtype: DType) -> None:
    x = decode(run_op(backend, RngUniform((20000,), dtype), seed(3, 3)))
    steps = 16 if dtype is dtypes.f8e4m3 else 8
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [step / steps for step in range(steps)]
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_the_words_is_fair(backend: Backend, bit: int) -> None:
    x = run_op(backend, RngUniform((4096,), dtypes.ui32), seed(11, 0))
    assert abs(int((x >> bit & 1).sum()) - 2048) < 160


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.f32, dtypes.f64], ids=str)
def test_normal_numbers_are_normal(backend: Backend, dtype: DType) -> None:
    x = decode(run_op(backend, RngNormal((20000,), dtype), seed(2024, 2)))
    assert abs(x.mean()) < 0.025
    assert abs(x.var() - 1) < 0.035
    assert abs((x**3).mean()) < 0.1
    assert abs((x**4).mean() - 3) < 0.2
    assert stats.kstest(x, "norm").pvalue > 0.001


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_normal_numbers_are_rounded_once(backend: Backend, dtype: DType) -> None:
    x = run_op(backend, RngNormal((500,), dtype), seed(7, 2**32 - 20))
    exact = [normal(word, dtype) for word in words((7, 2**32 - 20), 500, dtype)]
    np.testing.assert_array_equal(decode(x), rounded(np.array(exact), dtype))


def test_the_inverse_is_accurate_from_end_to_end() -> None:
    ends = [2.0**-n for n in range(1, 54)]
    u = np.array([*ends, *(1 - end for end in ends if end < 0.5), *np.linspace(0.001, 0.999, 999)])
    found = reference.inverse_normal(u)
    assert found.tolist() == [inverse_normal(value) for value in u.tolist()]
    np.testing.assert_allclose(found, special.ndtri(u), rtol=2e-15, atol=2e-16)
    assert math.isclose(found[52], special.ndtri(2.0**-53), rel_tol=1e-15)


def test_the_inverse_is_odd_about_one_half() -> None:
    u = (np.arange(1, 2000) + 0.5) / 4096
    np.testing.assert_array_equal(reference.inverse_normal(u), -reference.inverse_normal(1 - u))


@pytest.mark.parametrize("function", [primitives.rng_uniform, primitives.rng_normal])
def test_primitives_draw_f32_unless_told_otherwise(backend: Backend, function) -> None:
    op = RngUniform if function is primitives.rng_uniform else RngNormal
    for dtype, given in ((dtypes.f32, ()), (dtypes.f64, (dtypes.f64,))):
        expected = run_op(backend, op((2, 3), dtype), seed(4, 5))
        with gptrs.use_backend(backend):
            found = function(gptrs.tensor(seed(4, 5)), [2, 3], *given).numpy()
        assert found.dtype == dtype.numpy
        assert found.tobytes() == expected.tobytes()
