"""The derivative of attention in precision `bf16`: one kernel, beside formulas in f64."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.api.models import Tensor, tensor
from gptrs.capture.events import ExecutionTraceSink, KernelEvent, tracing
from gptrs.capture.execute import use_backend
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_DOT
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.attention_gradient import ATTENTION_GRADIENT

RNG = np.random.default_rng(3)
CASES = {
    "heads that share keys": ((2, 4, 64, 64), (2, 2, 64, 64), 64, True),
    "more queries than keys": ((1, 2, 160, 32), (1, 1, 96, 32), 64, True),
    "more keys than queries": ((1, 2, 96, 64), (1, 2, 288, 64), 96, True),
    "all keys": ((1, 3, 128, 96), (1, 3, 192, 96), 32, False),
    "rests of steps": ((1, 2, 48, 64), (1, 2, 48, 64), 64, True),
}


class Kernels(ExecutionTraceSink):
    """Remembers the kernels that ran."""

    wants_kernels = True

    def __init__(self) -> None:
        self.names: list[str] = []

    def after_kernel(self, event: KernelEvent) -> None:
        self.names.append(event.run.kernel)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def operands(name: str) -> tuple[list[np.ndarray], bool]:
    query, key, width, causal = CASES[name]
    shapes = (query, key, (*key[:3], width), (*query[:3], width))
    return [normal(*shape) for shape in shapes], causal


def pulled(
    arrays: list[np.ndarray], causal: bool, *, precision: str = "bf16", threads: int = 1
) -> tuple[list[np.ndarray], list[str]]:
    """Return the derivatives of the sum of attention times weights, and the kernels that ran."""

    def loss(query: Tensor, key: Tensor, value: Tensor, weights: Tensor) -> Tensor:
        return F.sum(F.attention(query, key, value, causal=causal) * weights)

    backend = create(threads)
    if precision != "f32":
        backend = backend.with_precision(precision)
    kernels = Kernels()
    with use_backend(backend), tracing(kernels):
        found = gptrs.jit(gptrs.grad(loss, argnums=(0, 1, 2)))(*map(tensor, arrays))
    return [each.numpy() for each in found], kernels.names


def exact(arrays: list[np.ndarray], causal: bool) -> list[np.ndarray]:
    """Return the derivatives in f64."""
    q, k, v, w = (each.astype(np.float64) for each in arrays)
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    k, v = (np.repeat(each, group, 1) for each in (k, v))
    queries, keys = q.shape[2], k.shape[2]
    seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    powers = np.exp(q @ k.swapaxes(2, 3) * scale) * (seen if causal else 1)
    p = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    slopes = w @ v.swapaxes(2, 3)
    scores = p * (slopes - (p * slopes).sum(-1, keepdims=True)) * scale
    by_key, by_value = (
        each.reshape(each.shape[0], -1, group, *each.shape[2:]).sum(2)
        for each in (scores.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ w)
    )
    return [scores @ k, by_key, by_value]


@pytest.mark.paths
@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_the_formula_but_for_roundings(name: str) -> None:
    arrays, causal = operands(name)
    found, kernels = pulled(arrays, causal)
    for one, other in zip(found, exact(arrays, causal), strict=True):
        error = np.sqrt(np.mean((one - other) ** 2) / np.mean(other**2))
        assert error < 2.0**-7
    rounds = (HAS_DOT or is_wanted()) and name != "rests of steps"
    assert (ATTENTION_GRADIENT in kernels) == rounds


@pytest.mark.paths
def test_threads_do_not_show() -> None:
    arrays, causal = operands("heads that share keys")
    one, other = (pulled(arrays, causal, threads=threads)[0] for threads in (1, 2))
    assert [each.tobytes() for each in one] == [each.tobytes() for each in other]


@pytest.mark.paths
def test_the_precision_f32_does_not_round() -> None:
    arrays, causal = operands("heads that share keys")
    found, kernels = pulled(arrays, causal, precision="f32")
    assert ATTENTION_GRADIENT not in kernels
    for one, other in zip(found, exact(arrays, causal), strict=True):
        assert np.abs(one - other).max() < 1e-5 * np.abs(other).max()


@pytest.mark.paths
def test_what_is_not_finite_spoils_its_own_head_alone() -> None:
    arrays, causal = operands("all keys")
    arrays[0][0, 1, 5, 7] = np.nan
    found, _ = pulled(arrays, causal)
    for each in found:
        assert np.isfinite(each[0, [0, 2]]).all()
    assert np.isnan(found[0][0, 1, 5]).all()
    assert np.isfinite(np.delete(found[0][0, 1], 5, 0)).all()


def test_a_derivative_of_it_enters_the_decomposition() -> None:
    arrays, causal = operands("heads that share keys")
    q, k, v, w = arrays

    def loss(query: Tensor) -> Tensor:
        return F.sum(F.attention(query, tensor(k), tensor(v), causal=causal) * tensor(w))

    direction, step = normal(*q.shape), 1e-2
    with use_backend(create(1)):
        _, found = gptrs.jvp(gptrs.grad(loss), (tensor(q),), (tensor(direction),))
        high, low = (gptrs.grad(loss)(tensor(q + s * direction)) for s in (step, -step))
    wanted = (high.numpy() - low.numpy()) / (2 * step)
    assert np.abs(found.numpy() - wanted).max() < 1e-2 * np.abs(wanted).max()
