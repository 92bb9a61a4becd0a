"""Gradients and Hessians against those of JAX, for functions of all families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives as P

jax = pytest.importorskip("jax", reason="the oracle")
jnp = jax.numpy
pytestmark = [pytest.mark.usefixtures("on_reference"), pytest.mark.long]

_random = np.random.default_rng(0)
X, Y = _random.standard_normal((2, 4, 6))
W = _random.standard_normal((6, 3))
ROWS = np.array([[0, 3, 3], [1, 1, 2]])
COLUMNS = _random.integers(0, 6, (4, 5))
IMAGE, KERNEL = _random.standard_normal((2, 5, 6, 2)), _random.standard_normal((3, 3, 2, 4))


def _loop(x: gptrs.Tensor) -> gptrs.Tensor:
    (last,), (rows,) = P.scan(lambda h, x: [F.tanh(h * x), h * h], [x[0]], [x])
    return rows * last


def _jax_loop(x: Any) -> Any:
    last, rows = jax.lax.scan(lambda h, x: (jnp.tanh(h * x), h * h), x[0], x)
    return rows * last


def _jax_conv(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


Pair = tuple[Callable[..., Any], Callable[..., Any], list[np.ndarray]]
PAIRS: dict[str, Pair] = {
    "arithmetic": (
        lambda x, y: x * y + x / (y * y + 1.0) - F.exp(-x) * F.sin(y),
        lambda x, y: x * y + x / (y * y + 1.0) - jnp.exp(-x) * jnp.sin(y),
        [X, Y],
    ),
    "powers": (
        lambda x, y: F.pow(F.exp(x), y) + F.sqrt(F.square(x) + 1.0) + F.log1p(F.square(y)),
        lambda x, y: jnp.power(jnp.exp(x), y) + jnp.sqrt(x * x + 1.0) + jnp.log1p(y * y),
        [X, Y],
    ),
    "activations": (
        lambda x: F.gelu(x) * F.silu(x) + F.softplus(x) * F.elu(x) + F.erf(x),
        lambda x: (
            jax.nn.gelu(x, approximate=False) * jax.nn.silu(x)
            + jax.nn.softplus(x) * jax.nn.elu(x)
            + jax.scipy.special.erf(x)
        ),
        [X],
    ),
    "softmax": (
        lambda x, y: F.softmax(x) * F.log_softmax(y, 0),
        lambda x, y: jax.nn.softmax(x) * jax.nn.log_softmax(y, 0),
        [X, Y],
    ),
    "reductions": (
        lambda x: F.max(x, 0) * F.mean(x) + F.prod(x, 0) + F.variance(x, 0) + F.logsumexp(x),
        lambda x: x.max(0) * x.mean() + x.prod(0) + x.var(0) + jax.nn.logsumexp(x),
        [X],
    ),
    "running": (
        lambda x: F.cumsum(x, 1) * F.cumprod(x, 0),
        lambda x: jnp.cumsum(x, 1) * jnp.cumprod(x, 0),
        [X],
    ),
    "products": (
        lambda x, w: F.tanh(x @ w) @ F.transpose(w, (1, 0)),
        lambda x, w: jnp.tanh(x @ w) @ w.T,
        [X, W],
    ),
    "indexing": (
        lambda x: P.take(x, gptrs.tensor(ROWS)) * F.exp(P.take(x, gptrs.tensor(ROWS))),
        lambda x: x[ROWS] * jnp.exp(x[ROWS]),
        [X],
    ),
    "gather": (
        lambda x: F.square(P.gather(x, gptrs.tensor(COLUMNS), 1)),
        lambda x: jnp.take_along_axis(x, COLUMNS, 1) ** 2,
        [X],
    ),
    "scatter": (
        lambda x, y: F.square(P.scatter_reduce(x, gptrs.tensor(COLUMNS), y[:, :5], 1, "add")),
        lambda x, y: x.at[np.arange(4)[:, None], COLUMNS].add(y[:, :5]) ** 2,
        [X, Y],
    ),
    "sort": (
        lambda x, y: F.sort(x, 1) * y + F.top_k(x, 6, 1)[0] * F.square(y),
        lambda x, y: jnp.sort(x, 1) * y + jax.lax.top_k(x, 6)[0] * y**2,
        [X, Y],
    ),
    "layout": (
        lambda x, y: F.concat([x[1:], F.flip(y, 0)[:, ::2].reshape((2, 6))], 0),
        lambda x, y: jnp.concatenate([x[1:], y[::-1][:, ::2].reshape(2, 6)], 0),
        [X, Y],
    ),
    "where": (
        lambda x, y: F.where(x > y, x * y, F.maximum(x, y) - F.clamp(x, -0.5, 0.5)),
        lambda x, y: jnp.where(x > y, x * y, jnp.maximum(x, y) - jnp.clip(x, -0.5, 0.5)),
        [X, Y],
    ),
    "loop": (_loop, _jax_loop, [X]),
    "convolution": (
        lambda x, w: F.conv2d(
            x, F.transpose(w, (3, 2, 0, 1)), stride=(2, 1), padding=((1, 1), (0, 2))
        ),
        _jax_conv,
        [IMAGE, KERNEL],
    ),
    "windows": (
        lambda x: P.reduce_window(x, "max", (1, 2, 2, 1), (1, 2, 1, 1)) * 2.0,
        lambda x: (
            jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "VALID")
            * 2.0
        ),
        [IMAGE],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_and_hessians_are_those_of_jax(name: str) -> None:
    ours, theirs, arrays = PAIRS[name]
    with jax.enable_x64(True):
        size = theirs(*map(jnp.asarray, arrays)).size
        weights = np.linspace(0.5, 1.5, size)

        def their_loss(*args: Any) -> Any:
            return jnp.sum(theirs(*args).reshape(-1) * weights)

        numbers = tuple(range(len(arrays)))
        gradient = jax.grad(their_loss, numbers)
        wanted = gradient(*arrays)
        vectors = tuple(_random.standard_normal(x.shape) for x in arrays)
        _, along = jax.jvp(gradient, tuple(arrays), vectors)

    def our_loss(*args: gptrs.Tensor) -> gptrs.Tensor:
        return F.sum(F.reshape(ours(*args), (-1,)) * gptrs.tensor(weights))

    found = gptrs.jit(gptrs.grad(our_loss, numbers))(*arrays)
    second = gptrs.hessian_vector(our_loss, arrays, vectors)
    for pairs in (zip(found, wanted, strict=True), zip(second, along, strict=True)):
        for own, want in pairs:
            np.testing.assert_allclose(own.numpy(), np.asarray(want), rtol=1e-10, atol=1e-10)
