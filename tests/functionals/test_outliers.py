"""One large element costs the others of its row no digits: orders of operations are the stated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend, InputRole
from gptrs.ir import parse_program

RELATIVE = 2.0**-20
"""The allowed error beside the largest of the other elements: 8 units of f32."""
EPSILON = 1e-5
Rows = Callable[[np.ndarray], np.ndarray]


def layer_norm_op(backend: Backend, x: np.ndarray) -> np.ndarray:
    rows, n = x.shape
    text = f"""ptir.v0.5
    func @main(%x: f32[{rows}, {n}], %w: f32[{n}], %b: f32[{n}]) -> f32[{rows}, {n}] {{
      %0 = layer_norm %x, %w, %b {{epsilon = {EPSILON}, axis = 1}} : f32[{rows}, {n}]
      return %0
    }}
    """
    run = backend.compile(parse_program(text), [InputRole.ARGUMENT] * 3).run
    inputs = [x, np.ones(n, np.float32), np.zeros(n, np.float32)]
    (found,) = run([backend.to_device(each) for each in inputs])
    return backend.to_host(found)


def group_norm(x: gptrs.Tensor) -> gptrs.Tensor:
    return F.group_norm(F.reshape(x, (*x.shape, 1)), groups=1, epsilon=EPSILON)


FUNCTIONALS = {
    "layer_norm": lambda x: F.layer_norm(x, epsilon=EPSILON),
    "rms_norm": lambda x: F.rms_norm(x, epsilon=EPSILON),
    "group_norm": group_norm,
    "softmax": F.softmax,
    "variance": lambda x: F.variance(x, axis=-1),
}


def computed(name: str, backend: Backend, x: np.ndarray) -> np.ndarray:
    if name == "layer_norm op":
        return layer_norm_op(backend, x)
    with gptrs.use_backend(backend):
        return FUNCTIONALS[name](gptrs.tensor(x)).numpy().reshape(len(x), -1)


def expected(name: str, x: np.ndarray) -> np.ndarray:
    """Return the definition in f64."""
    x = x.astype(np.float64)
    if name == "softmax":
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)
    d = x if name == "rms_norm" else x - x.mean(-1, keepdims=True)
    variance = (d * d).mean(-1, keepdims=True)
    return variance if name == "variance" else d / np.sqrt(variance + EPSILON)


def outliers(n: int, place: int, offset: float) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    x[:, place] += np.float32(offset)
    return x


PLACES = [(n, place) for n in (5, 64, 4096) for place in (0, 1, n // 2, n - 1)]


@pytest.mark.parametrize("name", ["layer_norm op", *FUNCTIONALS])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_the_others_keep_their_digits(backend: Backend, name: str, offset: float) -> None:
    for n, place in PLACES:
        x = outliers(n, place, offset)
        found, wanted = computed(name, backend, x), expected(name, x)
        if name != "variance":
            found, wanted = (np.delete(each, place, axis=1) for each in (found, wanted))
        limit = RELATIVE * np.abs(wanted).max(-1, keepdims=True)
        assert (np.abs(found - wanted) <= limit).all(), (n, place)


@pytest.mark.parametrize("name", ["layer_norm op", *FUNCTIONALS])
@pytest.mark.parametrize("offset", [8e37, -8e37])
def test_squares_beyond_f32_are_infinite(backend: Backend, name: str, offset: float) -> None:
    for n, place in PLACES:
        found = computed(name, backend, outliers(n, place, offset))
        if name == "softmax":
            wanted = expected(name, outliers(n, place, offset))
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-30)
        else:
            assert (found == (np.inf if name == "variance" else 0)).all(), (n, place)
