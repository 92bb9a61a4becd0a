"""Functionals agree with torch on the reference backend, which the kit compares others with."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.uses import ALL_USES

pytestmark = pytest.mark.usefixtures("on_reference")

torch = pytest.importorskip("torch", reason="parity needs torch")

ATOL = RTOL = 1e-5


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(
        np.random.default_rng(seed).standard_normal(shape, np.float32) * 3, np.float32
    )


def _check(ours: gptrs.Tensor, theirs: torch.Tensor, atol: float = ATOL, rtol: float = RTOL):
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=atol, rtol=rtol)


WITH_TORCH = [use for use in ALL_USES if use.torch]


@pytest.mark.parametrize("use", WITH_TORCH, ids=lambda use: use.name)
def test_use(use: Use):
    assert use.torch is not None
    theirs = use.torch(torch, *(torch.from_numpy(np.array(array)) for array in use.inputs))
    ours = use.call(*map(gptrs.tensor, use.inputs))
    alone = isinstance(ours, gptrs.Tensor)
    for found, wanted in zip([ours] if alone else ours, [theirs] if alone else theirs, strict=True):
        _check(found, wanted)


SHAPES = [(), (1,), (5,), (0, 3), (2, 3, 4), (1, 17, 33)]
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, 88.0, -100.0], np.float32)

ACTIVATIONS = {
    "relu": (F.relu, torch.nn.functional.relu),
    "tanh": (F.tanh, torch.tanh),
    "silu": (F.silu, torch.nn.functional.silu),
    "gelu": (F.gelu, torch.nn.functional.gelu),
    "gelu_tanh": (
        lambda x: F.gelu(x, "tanh"),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_activation(name, shape):
    ours, theirs = ACTIVATIONS[name]
    x = _random(*shape)
    _check(ours(gptrs.tensor(x)), theirs(torch.from_numpy(x)))


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_activation_of_edge_values(name):
    ours, theirs = ACTIVATIONS[name]
    _check(ours(gptrs.tensor(EDGES)), theirs(torch.from_numpy(EDGES.copy())))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_activation_of_finite_edge_values(name):
    ours, theirs = ACTIVATIONS[name]
    finite = EDGES[np.isfinite(EDGES) & (np.abs(EDGES) < 1e10)]
    _check(ours(gptrs.tensor(finite)), theirs(torch.from_numpy(finite.copy())))


@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((2, 0, 4), 2)]
)
def test_softmax(shape, axis):
    x = _random(*shape) * 10
    _check(F.softmax(gptrs.tensor(x), axis), torch.softmax(torch.from_numpy(x), axis))


def test_softmax_of_large_and_hidden_scores():
    x = np.array([[1e4, 1e4 - 1, -np.inf], [-1e4, -np.inf, -1e4]], np.float32)
    _check(F.softmax(gptrs.tensor(x)), torch.softmax(torch.from_numpy(x), -1))


@pytest.mark.parametrize("shape", [(7,), (2, 5), (2, 3, 16), (1, 4, 65)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(shape, with_bias):
    x, weight, bias = _random(*shape), _random(shape[-1], seed=1), _random(shape[-1], seed=2)
    given = bias if with_bias else None
    _check(
        F.layer_norm(
            gptrs.tensor(x), gptrs.tensor(weight), None if given is None else gptrs.tensor(given)
        ),
        torch.nn.functional.layer_norm(
            torch.from_numpy(x),
            shape[-1:],
            torch.from_numpy(weight),
            None if given is None else torch.from_numpy(given),
        ),
    )


def test_embedding():
    weight, indices = _random(10, 4), np.array([[0, 9, 3], [3, 3, 1]])
    _check(
        F.embedding(gptrs.tensor(indices), gptrs.tensor(weight)),
        torch.nn.functional.embedding(torch.from_numpy(indices), torch.from_numpy(weight)),
    )


MATMULS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
]


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_matmul(left, right):
    a, b = _random(*left), _random(*right, seed=1)
    _check(
        F.matmul(gptrs.tensor(a), gptrs.tensor(b)),
        torch.matmul(torch.from_numpy(a), torch.from_numpy(b)),
        atol=1e-4,
    )


@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (2, 0)])
@pytest.mark.parametrize("layout", ["out_in", "in_out"])
def test_linear(lead, layout):
    x, weight, bias = _random(*lead, 6), _random(4, 6, seed=1), _random(4, seed=2)
    stored = weight if layout == "out_in" else np.ascontiguousarray(weight.T)
    _check(
        F.linear(gptrs.tensor(x), gptrs.tensor(stored), gptrs.tensor(bias), layout),
        torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, bias))),
        atol=1e-4,
    )


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (1, 9), (3, 8)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_causal_attention(queries, keys, scale):
    query = _random(2, 3, queries, 5)
    key, value = _random(2, 3, keys, 5, seed=1), _random(2, 3, keys, 6, seed=2)
    offset = keys - queries
    mask = np.tril(np.ones((queries, keys), bool), offset)
    ours = F.attention(
        *map(gptrs.tensor, (query, key, value)), F.causal_mask(queries, keys, offset), scale
    )
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (query, key, value)), torch.from_numpy(mask), scale=scale
    )
    _check(ours, theirs)


def test_attention_without_a_mask():
    arrays = [_random(1, 2, 4, 8, seed=seed) for seed in range(3)]
    _check(
        F.attention(*map(gptrs.tensor, arrays)),
        torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, arrays)),
    )


def test_cached_attention_equals_the_whole():
    """Feeding positions in pieces through the cache gives the rows of the uncached result."""
    query, key, value = (_random(1, 2, 6, 4, seed=seed) for seed in range(3))
    whole = F.attention(*map(gptrs.tensor, (query, key, value)), F.causal_mask(6, 6)).numpy()
    caches = [gptrs.tensor(np.zeros((1, 2, 8, 4), np.float32)) for _ in range(2)]
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        at = gptrs.tensor(np.int64(start))
        q, k, v = (gptrs.tensor(array[:, :, start:stop]) for array in (query, key, value))
        caches = [F.update_cache(caches[0], k, at), F.update_cache(caches[1], v, at)]
        out = F.attention(q, *caches, F.causal_mask(stop - start, 8, at))
        np.testing.assert_allclose(out.numpy(), whole[:, :, start:stop], atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((0, 1), (4,))],
)
def test_arithmetic(op, left, right):
    a, b = _random(*left), _random(*right, seed=1)
    _check(
        getattr(F, op)(gptrs.tensor(a), gptrs.tensor(b)),
        getattr(torch, op)(torch.from_numpy(a), torch.from_numpy(b)),
    )


def test_split_concat_transpose_slice():
    x = _random(2, 6, 3)
    parts = F.split(gptrs.tensor(x), 3, axis=1)
    for ours, theirs in zip(parts, torch.from_numpy(x).split(2, 1), strict=True):
        _check(ours, theirs)
    np.testing.assert_array_equal(F.concat(parts, 1).numpy(), x)
    np.testing.assert_array_equal(F.transpose(gptrs.tensor(x)).numpy(), x.T)
    np.testing.assert_array_equal(F.slice_axis(gptrs.tensor(x), -1, 1, 2).numpy(), x[..., 1:])
    np.testing.assert_array_equal(F.reshape(gptrs.tensor(x), (-1, 9)).numpy(), x.reshape(-1, 9))
    np.testing.assert_array_equal(F.arange(2, 6).numpy(), np.arange(2, 6))
