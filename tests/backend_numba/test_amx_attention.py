"""Attention with AMX: as exact as on vector units, and the same where it must be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from backend_numba.attentions import attend, operands, require_close, wanted
from gptrs_backend_numba.kernels.amx.attention_operands import KEYS
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import attention
from gptrs_backend_numba.lowering.amx_matmul import is_there

OFF = ("GPTRS_NUMBA_AMX", "0")
Shape = tuple[int, int, int, int, int, int, int]

pytestmark = pytest.mark.skipif(not is_there(), reason="the processor has no AMX")


def require_amx(shape: Shape) -> None:
    """Assert that the shape is one that is computed with AMX."""
    _, _, group, length, keys, head_dim, value_dim = shape
    fields = {geometry.S: keys, geometry.HEAD_DIM: head_dim, geometry.VALUE_DIM: value_dim}
    assert attention.suits(fields, group * length)


def _seeds() -> Iterator[pytest.ParameterSet]:
    """Ten shapes in three types; each shape in one of them is not `exhaustive`."""
    for seed, (place, dtype) in itertools.product(range(10), enumerate(("f32", "f16", "bf16"))):
        marks = [pytest.mark.exhaustive] if (seed + place) % 3 else []
        yield pytest.param(seed, dtype, marks=marks)


@pytest.mark.sample(3)
@pytest.mark.paths
@pytest.mark.parametrize(("seed", "dtype"), list(_seeds()))
def test_random_shapes_masks_and_positions(seed: int, dtype: str) -> None:
    random = np.random.default_rng(seed)
    batch, n_kv_heads = (int(random.integers(1, 3)) for _ in range(2))
    group = int(random.choice([1, 1, 3, 4, 16]))
    length = int(random.choice([PANEL, PANEL + 1, 70, 2 * PANEL]))
    keys = int(random.choice([KEYS, KEYS + 1, 130, 4 * KEYS]))
    head_dim = int(random.choice([32, 60, 64, 90, 96, 120, 128, 160, 256]))
    value_dim = int(random.choice([32, 58, 64, 96, 128]))
    shape = batch, n_kv_heads, group, length, keys, head_dim, value_dim
    require_amx(shape)
    query, key, value = operands(random, shape, dtype)
    causal = bool(random.integers(2))
    offset = int(random.integers(-40, keys + 3)) if causal and random.integers(2) else None
    shapes = ((length, keys), (batch, 1, 1, keys), (batch, n_kv_heads * group, length, keys))
    mask = random.random(shapes[seed % 3]) < 0.7 if random.integers(2) else None
    scale = 1.5 / head_dim**0.5
    given = {"scale": scale, "causal": causal, "mask": mask, "offset": offset}
    found = attend(query, key, value, dtype=dtype, guard="none", **given)
    require_close(found, wanted(query, key, value, guard="none", **given), dtype)
    found = attend(query, key, value, dtype=dtype, **given)
    require_close(found, wanted(query, key, value, **given), dtype)
    again = attend(query, key, value, dtype=dtype, threads=3, **given)
    assert found.tobytes() == again.tobytes()


@pytest.mark.paths
def test_a_blind_query_gives_zero_and_nan_in_programs_of_a_plain_softmax() -> None:
    shape = (1, 2, 1, PANEL + 8, KEYS + 10, 64, 32)
    require_amx(shape)
    arrays = operands(np.random.default_rng(10), shape, "f32")
    mask = np.random.default_rng(11).random((PANEL + 8, KEYS + 10)) < 0.5
    mask[3], mask[PANEL, : KEYS + 2] = False, False
    for seen in ({"mask": mask}, {"causal": True, "offset": -PANEL - 1}):
        for guard in ("blind", "none"):
            found = attend(*arrays, guard=guard, **seen)
            require_close(found, wanted(*arrays, guard=guard, **seen))
            blind = found[:, :, 3]
            assert (blind == 0).all() if guard == "blind" else np.isnan(blind).all()


@pytest.mark.parametrize("length", [40, 2000])
def test_more_keys_and_queries_than_are_split_at_a_time(length: int) -> None:
    shape = (1, 1, 1, length, 2000, 64, 32)
    require_amx(shape)
    arrays = operands(np.random.default_rng(1), shape, "f32")
    found = attend(*arrays, scale=0.2, causal=True)
    require_close(found, wanted(*arrays, scale=0.2, causal=True))
    assert found.tobytes() == attend(*arrays, scale=0.2, causal=True, threads=2).tobytes()


@pytest.mark.parametrize("group", [1, 4, 16])
def test_heads_that_were_split_by_a_transpose(group: int) -> None:
    shape = (2, 2, group, 2 * PANEL, 100, 64, 32)
    require_amx(shape)
    arrays = operands(np.random.default_rng(2), shape, "f32")
    transposed = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in arrays]
    require_close(attend(*transposed, scale=0.1, transposed=True), wanted(*arrays, scale=0.1))


def test_later_queries_and_keys_change_nothing() -> None:
    query, key, value = operands(np.random.default_rng(3), (1, 2, 1, 300, 300, 64, 64), "f32")
    found = attend(query, key, value, causal=True)
    for length in (KEYS, 100, 160):
        some = attend(*(x[:, :, :length] for x in (query, key, value)), causal=True)
        assert np.array_equal(found[:, :, :length], some)


@pytest.mark.sample(24)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4028235e38])
@pytest.mark.parametrize("side", range(3))
@pytest.mark.parametrize("place", [5, 70, 99])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_what_is_not_finite_matters_as_on_vector_units(
    bad: float, side: int, place: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = operands(np.random.default_rng(4), (1, 2, 1, 100, 100, 64, 64), dtype)
    with np.errstate(over="ignore"):
        arrays[side][0, 1, place, 3] = bad
    found = attend(*arrays, dtype=dtype, causal=True).astype(np.float64)
    monkeypatch.setenv(*OFF)
    want = attend(*arrays, dtype=dtype, causal=True).astype(np.float64)
    finite = np.isfinite(want)
    assert np.array_equal(found[~finite], want[~finite], equal_nan=True)
    require_close(found[finite], want[finite], dtype)


def test_values_that_overflow_with_large_weights() -> None:
    query, key, value = operands(np.random.default_rng(8), (1, 1, 1, 64, 512, 64, 64), "f32")
    query, key = np.abs(query), key + (np.arange(512, dtype=np.float32) * 1e-3)[:, None]
    value = np.abs(value) * np.float32(1e36)
    np.testing.assert_allclose(attend(query, key, value), wanted(query, key, value), rtol=1e-5)


def test_large_scores() -> None:
    query, key, value = operands(np.random.default_rng(5), (1, 1, 1, 100, 200, 64, 64), "f32")
    query, key = query * 100, key * 100
    np.testing.assert_allclose(
        attend(query, key, value), wanted(query, key, value), rtol=2e-2, atol=2e-3
    )


def test_scores_that_grow_from_block_to_block() -> None:
    """Sums are scaled down again and again, and also where they are left for a while."""
    query, key, value = operands(np.random.default_rng(6), (1, 1, 1, 64, 512, 64, 64), "f32")
    query = np.abs(query)
    for growth in (0.001, 0.02, 0.2):
        grown = key + (np.arange(512, dtype=np.float32) * np.float32(growth))[:, None]
        found, want = attend(query, grown, value), wanted(query, grown, value)
        bound = 2.0**-21 * (10 + 0.3 * np.abs(query @ grown.swapaxes(2, 3)).max())
        np.testing.assert_allclose(found, want, rtol=bound, atol=bound)


def test_small_shapes_and_a_switch_leave_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of vector units are another order of additions: the last bits tell them apart."""
    query, key, value = operands(np.random.default_rng(7), (1, 1, 1, 64, 100, 64, 64), "f32")
    with_amx, few = attend(query, key, value), attend(query[:, :, :31], key, value)
    monkeypatch.setenv(*OFF)
    without = attend(query, key, value)
    assert not np.array_equal(with_amx, without)
    assert np.array_equal(few, without[:, :, :31])
