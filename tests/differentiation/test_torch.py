"""Gradients against those of torch: special values, models, and training."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives as P
from support.small_gpt import Params, batch, gpt_loss, gpt_params, torch_gpt_loss

torch = pytest.importorskip("torch", reason="the oracle")
pytestmark = [pytest.mark.usefixtures("on_backend"), pytest.mark.long]

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.0])
A, B = (each.reshape(-1) for each in np.meshgrid(SPECIAL, SPECIAL))
PAIRS: dict[str, tuple[Callable[..., gptrs.Tensor], Callable[..., torch.Tensor]]] = {
    "maximum": (F.maximum, torch.maximum),
    "minimum": (F.minimum, torch.minimum),
    "pow": (P.pow, torch.pow),
    "div": (F.div, torch.div),
    "mul": (F.mul, torch.mul),
    "where": (
        lambda a, b: F.where(a < b, a, b * a),
        lambda a, b: torch.where(a < b, a, b * a),
    ),
    "clamp": (
        lambda a, b: P.clamp(a, b, F.ones(a.shape, "f64")),
        lambda a, b: torch.clamp(a, b, torch.ones_like(a)),
    ),
}
SINGLE: dict[str, tuple[Callable[..., gptrs.Tensor], Callable[..., torch.Tensor]]] = {
    name: (getattr(F, name), getattr(torch, name))
    for name in ("abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin")
} | {name: (getattr(F, name), getattr(torch, name)) for name in ("cos", "tanh", "sigmoid", "erf")}
LINES: dict[str, tuple[Callable[..., gptrs.Tensor], Callable[..., torch.Tensor]]] = {
    "max": (lambda x: F.max(x, 1), lambda x: torch.amax(x, 1)),
    "min": (lambda x: F.min(x, 1), lambda x: torch.amin(x, 1)),
    "prod": (lambda x: F.prod(x, 1), lambda x: torch.prod(x, 1)),
    "cumprod": (lambda x: F.cumprod(x, 1), lambda x: torch.cumprod(x, 1)),
    "cumsum": (lambda x: F.cumsum(x, 1), lambda x: torch.cumsum(x, 1)),
    "cummax": (lambda x: F.cummax(x, 1), lambda x: torch.cummax(x, 1).values),
    "cummin": (lambda x: F.cummin(x, 1), lambda x: torch.cummin(x, 1).values),
    "sort": (lambda x: F.sort(x, 1), lambda x: torch.sort(x, dim=1, stable=True).values),
    "std": (lambda x: F.std(x, 1), lambda x: torch.std(x, 1, correction=0)),
    "l2_normalize": (
        lambda x: F.l2_normalize(x - x[:, :1]),
        lambda x: torch.nn.functional.normalize(x - x[:, :1], dim=1),
    ),
    "softmax": (F.softmax, lambda x: torch.softmax(x, -1)),
    "log_softmax": (F.log_softmax, lambda x: torch.log_softmax(x, -1)),
    "max_pool": (
        lambda x: F.max_pool(F.reshape(x, (1, -1, 1)), 3, stride=2, padding=1),
        lambda x: torch.nn.functional.max_pool1d(x.reshape(1, 1, -1), 3, 2, 1),
    ),
}


def _both(
    ours: Callable[..., gptrs.Tensor],
    theirs: Callable[..., torch.Tensor],
    arrays: list[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the gradients of a weighted sum by all arrays, ours and torch's."""
    leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
    result = theirs(*leaves)
    weights = np.linspace(0.5, 1.5, result.numel())
    (result.reshape(-1) * torch.tensor(weights)).sum().backward()

    def loss(*args: gptrs.Tensor) -> gptrs.Tensor:
        found = ours(*args)
        return F.sum(F.reshape(found, (-1,)) * gptrs.tensor(weights))

    found = gptrs.jit(gptrs.grad(loss, range(len(arrays))))(*arrays)
    zero = [np.zeros_like(each) for each in arrays]
    wanted = [
        nil if leaf.grad is None else leaf.grad.numpy()
        for leaf, nil in zip(leaves, zero, strict=True)
    ]
    return [(each.numpy(), want) for each, want in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_special_values(name: str) -> None:
    for found, wanted in _both(*PAIRS[name], [A, B]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.whole
@pytest.mark.parametrize("name", SINGLE)
def test_special_values(name: str) -> None:
    # The sign of NaN is NaN, as in JAX; in torch it is 0.
    special = SPECIAL[~np.isnan(SPECIAL)] if name == "abs" else SPECIAL
    for found, wanted in _both(*SINGLE[name], [special]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", ["sinh", "cosh", "tan", "asin", "atan", "asinh", "atanh"])
def test_angles_at_zero_and_beside_it(name: str) -> None:
    points = np.array([0.0, -0.0, 0.3, -0.7, 1, -1, 3, -40, 1e6])
    points = points[np.abs(points) < 1] if name in ("asin", "atanh") else points[:-1]
    for found, wanted in _both(getattr(F, name), getattr(torch, name), [points]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["asin", "acos", "acosh", "atanh"])
def test_angles_at_the_ends_of_their_range(name: str) -> None:
    points = np.array([1.0]) if name == "acosh" else np.array([1.0, -1, 0, -0.0, 0.6, -0.6])
    for found, wanted in _both(getattr(F, name), getattr(torch, name), [points]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_angles_of_points_on_axes_and_diagonals() -> None:
    y, x = (each.reshape(-1) for each in np.meshgrid([0.0, -0.0, 1, -1, 2, -3], [1.0, -1, 2, 0]))
    y, x = y[np.abs(y) + np.abs(x) > 0], x[np.abs(y) + np.abs(x) > 0]
    for found, wanted in _both(F.atan2, torch.atan2, [y, x]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["relu", "relu6", "hard_sigmoid", "hard_swish", "softplus"])
def test_activations_on_their_bounds(name: str) -> None:
    points = np.array([-3.0, -0.0, 0, 3, 6, -7, 1, 8, np.inf, -np.inf])
    theirs = getattr(torch.nn.functional, name.replace("hard_", "hard"))
    finite = points if name == "relu" else points[:-2]
    for found, wanted in _both(getattr(F, name), theirs, [finite]):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)  # torch multiplies by an f32 of 1 / 6


@pytest.mark.parametrize("name", LINES)
def test_ties_and_zeros(name: str) -> None:
    x = np.array([[1.0, 2, 2, 0], [0, 0, 3, 3], [5, 5, 5, 5], [-1, 0, -1, 2]])
    for found, wanted in _both(*LINES[name], [x]):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_nan_makes_the_gradient_of_its_slice_nan(name: str) -> None:
    x = np.array([[1.0, np.nan, 2], [0, 1, 1]])
    for found, wanted in _both(*LINES[name], [x]):
        np.testing.assert_array_equal(found, wanted)


def _relative(found: gptrs.Tensor, wanted: torch.Tensor) -> float:
    want = wanted.detach().numpy()
    return float(np.abs(found.numpy() - want).max() / (np.abs(want).max() + 1e-9))


def test_the_gradients_of_a_small_gpt() -> None:
    params = gpt_params()
    tokens, targets = batch(0)
    value, found = gptrs.jit(gptrs.value_and_grad(gpt_loss))(params, tokens, targets)
    leaves = {name: torch.tensor(x, requires_grad=True) for name, x in params.items()}
    loss = torch_gpt_loss(leaves, torch.tensor(tokens), torch.tensor(targets))
    loss.backward()
    assert abs(value.item() - loss.item()) < 1e-5
    assert max(_relative(found[name], leaf.grad) for name, leaf in leaves.items()) < 1e-5


def test_twenty_steps_of_adamw_follow_torch() -> None:
    rate, b1, b2, epsilon, decay = 1e-2, 0.9, 0.99, 1e-8, 0.1

    def update(
        params: Params, m: Params, v: Params, c1: gptrs.Tensor, c2: gptrs.Tensor, *data: object
    ) -> tuple[gptrs.Tensor, Params, Params, Params]:
        loss, grads = gptrs.value_and_grad(gpt_loss)(params, *data)
        m = {name: m[name] * b1 + g * (1 - b1) for name, g in grads.items()}
        v = {name: v[name] * b2 + g * g * (1 - b2) for name, g in grads.items()}
        moved = {
            name: x * (1 - rate * decay) - (m[name] / c1) / (F.sqrt(v[name] / c2) + epsilon) * rate
            for name, x in params.items()
        }
        return loss, moved, m, v

    step = gptrs.jit(update, donate=[0, 1, 2])
    start = gpt_params()
    leaves = {name: torch.tensor(x, requires_grad=True) for name, x in start.items()}
    optimizer = torch.optim.AdamW(leaves.values(), rate, (b1, b2), epsilon, decay)
    params = {name: gptrs.tensor(x) for name, x in start.items()}
    m = {name: gptrs.tensor(np.zeros_like(x)) for name, x in start.items()}
    v = {name: gptrs.tensor(np.zeros_like(x)) for name, x in start.items()}
    last = math.inf
    for number in range(20):
        data = batch(number)
        corrections = [np.float32(1 - b ** (number + 1)) for b in (b1, b2)]
        ours, params, m, v = step(params, m, v, *corrections, *data)
        loss = torch_gpt_loss(leaves, *map(torch.tensor, data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(ours.item() - loss.item()) < 1e-5
        last = loss.item()
    assert last < 3.4  # from 3.9: it learns
