"""Attention differentiated in blocks of queries, beside the derivative of its decomposition."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.differentiation import attention
from gptrs.functionals.dispatch.composites import CompositeCalls
from gptrs.ir.program import Program

pytestmark = pytest.mark.usefixtures("on_reference")

RANDOM = np.random.default_rng(8)
SETTINGS = {
    "all": {},
    "causal": {"causal": True},
    "soft, scaled": {"softcap": 1.5, "scale": 0.3},
    "window": {"causal": True, "window": 70},
    "ahead": {"causal": True, "offset": 3},
    "before all keys": {"causal": True, "offset": -90},
    "ahead by a tensor": {"causal": True, "offset": np.int64(20)},
    "mask of keys": {"mask": RANDOM.random((2, 1, 1, 150)) < 0.6},
    "mask of both": {"mask": RANDOM.random((190, 150)) < 0.6, "causal": True},
    "bias": {"mask": RANDOM.normal(size=(4, 190, 150))},
}


def gradient(settings: dict[str, object], arrays: list[np.ndarray]) -> tuple[list, Program]:
    def loss(q, k, v, weights):
        own = {
            name: gptrs.tensor(value) if isinstance(value, np.ndarray | np.int64) else value
            for name, value in settings.items()
        }
        return F.sum(F.attention(q, k, v, **own) * weights)

    found = gptrs.jit(gptrs.grad(loss, (0, 1, 2)))
    return [each.numpy() for each in found(*arrays)], found.lower(*arrays)


@pytest.mark.parametrize("name", SETTINGS)
def test_blocks_have_the_derivative_of_the_whole(name, monkeypatch):
    """Of 190 queries in blocks of 64, with two heads for each of the keys."""
    shapes = (2, 4, 190, 3), (2, 2, 150, 3), (2, 2, 150, 5), (2, 4, 190, 5)
    arrays = [RANDOM.normal(size=shape) for shape in shapes]
    whole, program = gradient(SETTINGS[name], arrays)
    assert "[2, 4, 190, 150]" in str(program)
    monkeypatch.setattr(attention, "MOST_SCORES", 1)
    anew = CompositeCalls(attention.GRADIENT.kind, attention.gradient)  # the other one is kept
    monkeypatch.setattr(attention, "GRADIENT", anew)
    blocks, program = gradient(SETTINGS[name], arrays)
    own = ("main", "attention_gradient")
    derivative = [text for text in str(program).split("func @") if text.startswith(own)]
    assert derivative
    assert "[2, 4, 190, 150]" not in "".join(derivative)
    for found, expected in zip(blocks, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_learned_bias_is_differentiated_at_once(monkeypatch):
    monkeypatch.setattr(attention, "MOST_SCORES", 1)
    x, bias = RANDOM.normal(size=(1, 1, 130, 2)), RANDOM.normal(size=(130, 130))
    found = gptrs.grad(lambda x, bias: F.sum(F.attention(x, x, x, bias) * x), 1)(x, bias).numpy()
    step = 1e-6 * np.sign(bias)

    def at(bias):
        return F.sum(F.attention(*[gptrs.tensor(x)] * 3, gptrs.tensor(bias)) * x).item()

    slope = (at(bias + step) - at(bias - step)) / 2e-6
    assert slope == pytest.approx((found * np.sign(bias)).sum(), rel=1e-6)


def test_sizes_that_are_symbols_are_differentiated_at_once(monkeypatch):
    monkeypatch.setattr(attention, "MOST_SCORES", 1)

    def loss(x):
        return F.sum(F.attention(x, x, x, causal=True) * x)

    step = gptrs.jit(gptrs.grad(loss), dynamic={"x": (None, None, "T", None)})
    for size in (70, 130):
        x = RANDOM.normal(size=(1, 1, size, 2))
        np.testing.assert_allclose(step(x).numpy(), gptrs.grad(loss)(x).numpy(), atol=1e-12)
