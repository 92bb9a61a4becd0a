"""Indexing ops agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture import primitives as P
from gptrs.ir import dtypes
from parity.torch_arrays import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NARROW,
    TORCH,
    assert_close,
    assert_same_bits,
    assert_same_elements,
    computed,
    edge_values,
    moderate_values,
    to_torch,
    torch,
)

INDICES = [dtypes.si32, dtypes.si64]
GATHERED = [dtype for dtype in TORCH if dtype not in NARROW]
TORCH_KINDS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def indices(shape, size, seed=1):
    return np.asarray(np.random.default_rng(seed).integers(0, max(size, 1), shape))


@pytest.mark.parametrize("dtype", GATHERED, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows"), [((5,), ()), ((5, 3), (4,)), ((5, 3), (2, 0)), ((5, 0, 2), (2, 2))], ids=str
)
def test_take(reference, shape, rows, dtype):
    x, at = edge_values(dtype, shape), indices(rows, shape[0])
    (found,) = computed(reference, P.take, x, at)
    expected = to_torch(x).index_select(0, to_torch(at).reshape(-1))
    assert_same_bits(found, expected.reshape((*rows, *shape[1:])))


@pytest.mark.parametrize("weights", [dtypes.f32, dtypes.bf16], ids=str)
@pytest.mark.parametrize("dtype", INDICES, ids=str)
def test_take_is_an_embedding(reference, dtype, weights):
    x, at = edge_values(weights, (7, 5)), indices((2, 3), 7).astype(dtype.numpy)
    (found,) = computed(reference, P.take, x, at)
    assert_same_bits(found, torch.nn.functional.embedding(to_torch(at), to_torch(x)))


PLACES = [
    ((5,), (3,), 0),
    ((5,), (0,), 0),
    ((4, 3), (4, 3), 1),
    ((4, 3), (9, 2), 0),
    ((3, 2, 5), (2, 2, 4), -1),
    ((3, 0), (3, 0), 0),
    ((2, 1, 3, 2), (1, 6, 2, 2), 1),
]


@pytest.mark.parametrize("dtype", GATHERED, ids=str)
@pytest.mark.parametrize(("shape", "read", "axis"), PLACES, ids=str)
def test_gather(reference, shape, read, axis, dtype):
    x, at = edge_values(dtype, shape), indices(read, shape[axis])
    (found,) = computed(reference, lambda *operands: P.gather(*operands, axis), x, at)
    assert_same_elements(found, torch.gather(to_torch(x), axis, to_torch(at)))


def scattered(reference, x, at, updates, axis, kind):
    function = lambda *operands: P.scatter_reduce(*operands, axis, kind)  # noqa: E731
    return computed(reference, function, x, at, updates)[0]


@pytest.mark.parametrize("kind", TORCH_KINDS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("shape", "written", "axis"), PLACES, ids=str)
def test_scatter_of_integers(reference, shape, written, axis, dtype, kind):
    x, updates = edge_values(dtype, shape), edge_values(dtype, written, seed=2)
    at = indices(written, shape[axis])
    found = scattered(reference, x, at, updates, axis, kind)
    tensors = to_torch(x), to_torch(at), to_torch(updates)
    expected = tensors[0].scatter_reduce(axis, *tensors[1:], TORCH_KINDS[kind])
    assert_same_bits(found, expected)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "written", "axis"), PLACES, ids=str)
def test_scatter_of_extremes(reference, shape, written, axis, dtype, kind):
    x, updates = edge_values(dtype, shape), edge_values(dtype, written, seed=2)
    at = indices(written, shape[axis])
    found = scattered(reference, x, at, updates, axis, kind)
    tensors = to_torch(x), to_torch(at), to_torch(updates)
    expected = tensors[0].scatter_reduce(axis, *tensors[1:], TORCH_KINDS[kind])
    assert_close(found, expected)


@pytest.mark.parametrize("kind", ["add", "mul"])
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
@pytest.mark.parametrize(("shape", "written", "axis"), PLACES, ids=str)
def test_scatter_of_floats(reference, shape, written, axis, dtype, kind):
    """Against torch in f64 rounded once, for it accumulates 16 bits in 16 bits."""
    x, updates = moderate_values(dtype, shape), moderate_values(dtype, written, seed=2)
    at = indices(written, shape[axis])
    found = scattered(reference, x, at, updates, axis, kind)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    target, source = to_torch(x).to(wide), to_torch(updates).to(wide)
    expected = target.scatter_reduce(axis, to_torch(at), source, TORCH_KINDS[kind])
    # Sums of such values are exact before they are rounded, and so are these products in f64.
    rtol = 1e-5 if kind == "mul" and dtype.is_complex else 0.0
    assert_close(found, expected.to(TORCH[dtype]), rtol)


@pytest.mark.parametrize("dtype", GATHERED, ids=str)
def test_scatter_that_replaces(reference, dtype):
    """torch does not say which of several updates stays, so each place gets one at most."""
    x, updates = edge_values(dtype, (4, 7)), edge_values(dtype, (3, 5), seed=2)
    at = np.stack([np.random.default_rng(row).permutation(7)[:5] for row in range(3)])
    found = scattered(reference, x, at, updates, 1, "replace")
    assert_same_elements(found, to_torch(x).scatter(1, to_torch(at), to_torch(updates)))


@pytest.mark.parametrize("dtype", [*INTEGERS, dtypes.f32, dtypes.f64], ids=str)
def test_scatter_of_rows_is_index_add(reference, dtype):
    x, updates = moderate_values(dtype, (4, 3)), moderate_values(dtype, (6, 3), seed=2)
    at = indices((6,), 4)
    spread = np.ascontiguousarray(np.broadcast_to(at[:, np.newaxis], (6, 3)))
    found = scattered(reference, x, spread, updates, 0, "add")
    assert_close(found, to_torch(x).index_add(0, to_torch(at), to_torch(updates)))


@pytest.mark.parametrize("kind", TORCH_KINDS)
@pytest.mark.parametrize("dtype", [*INTEGERS, dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("shape", [(7,), (6, 3), (0, 2), (4, 0)], ids=str)
def test_segments(reference, shape, dtype, kind):
    """Every segment has a row where there are any, since torch has no identity of max and min."""
    x = moderate_values(dtype, shape)
    ids = np.random.default_rng(1).permutation(np.arange(shape[0]) % 3)
    present = min(3, shape[0])
    ours = {"add": "sum", "mul": "prod"}.get(kind, kind)
    (found,) = computed(reference, lambda *t: P.segment_reduce(*t, ours, present), x, ids)
    empty = torch.zeros(present, *shape[1:], dtype=TORCH[dtype])
    spread = to_torch(ids).reshape(-1, *[1] * (x.ndim - 1)).expand(shape)
    expected = empty.scatter_reduce(0, spread, to_torch(x), TORCH_KINDS[kind], include_self=False)
    assert_close(found, expected)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=str)
def test_segments_of_sorted_rows(reference, dtype, kind):
    """torch has segments one after another; an empty one is the identity, NaN propagates."""
    x = edge_values(dtype, (8,), seed=2)
    ids = np.array([0, 0, 2, 3, 3, 3, 5, 5])
    (found,) = computed(reference, lambda *t: P.segment_reduce(*t, kind, 7), x, ids)
    lengths = torch.bincount(to_torch(ids), minlength=7)
    expected = torch.segment_reduce(to_torch(x), kind, lengths=lengths)
    assert_close(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("start", [(0, 0), (1, 2), (2, 3)])
def test_dynamic_slice_is_narrow(reference, start, dtype):
    x = edge_values(dtype, (4, 5))
    (found,) = computed(reference, lambda *t: P.dynamic_slice(*t, (2, 2)), x, np.array(start))
    assert_same_bits(found, to_torch(x).narrow(0, start[0], 2).narrow(1, start[1], 2))


@pytest.mark.parametrize("dtype", GATHERED, ids=str)
@pytest.mark.parametrize("start", [0, 2, 3])
def test_dynamic_update_slice_is_slice_scatter(reference, start, dtype):
    x, update = edge_values(dtype, (4, 5)), edge_values(dtype, (4, 2), seed=2)
    (found,) = computed(reference, P.dynamic_update_slice, x, update, np.array([0, start]))
    expected = to_torch(x).slice_scatter(to_torch(update), 1, start, start + 2)
    assert_same_bits(found, expected)
