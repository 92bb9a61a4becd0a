"""`custom_vjp`, `remat` and `stop_gradient`."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives as P
from gptrs.capture.optimization import optimize
from gptrs.errors import UsageError
from gptrs.ir.ops.control_flow import Cond
from support.differences import require_slopes

pytestmark = pytest.mark.usefixtures("on_reference")

X = np.random.default_rng(0).standard_normal((4, 3))


@gptrs.custom_vjp
def clipped(x: gptrs.Tensor, limits: dict[str, float]) -> gptrs.Tensor:
    """`x` itself; its cotangents are clipped."""
    return x * 1.0


def _forward(x: gptrs.Tensor, limits: dict[str, float]) -> tuple[gptrs.Tensor, dict[str, float]]:
    return x * 1.0, limits


def _backward(limits: dict[str, float], g: gptrs.Tensor) -> tuple[object, object]:
    return F.clamp(g, -limits["high"], limits["high"]), limits


clipped.defvjp(_forward, _backward)


def test_the_given_derivative_is_taken() -> None:
    run = gptrs.jit(
        gptrs.grad(lambda x, high: F.sum(clipped(x, {"high": high}) * x * 3.0)), static="high"
    )
    for high in (0.5, 1.0):
        wanted = 3 * X + np.clip(3 * X, -high, high)
        np.testing.assert_allclose(run(X, high).numpy(), wanted)


def test_without_a_derivative_it_is_the_function() -> None:
    np.testing.assert_array_equal(clipped(gptrs.tensor(X), {"high": 1.0}).numpy(), X)
    np.testing.assert_array_equal(gptrs.jit(lambda x: clipped(x, {"high": 1.0}))(X).numpy(), X)


def test_several_arguments_and_results() -> None:
    @gptrs.custom_vjp
    def both(x: gptrs.Tensor, n: gptrs.Tensor) -> tuple[gptrs.Tensor, dict[str, gptrs.Tensor]]:
        return F.sin(x), {"n": n, "x": x * x}

    def forward(x: gptrs.Tensor, n: gptrs.Tensor) -> tuple[object, object]:
        return (F.sin(x), {"n": n, "x": x * x}), (x, n)

    def backward(kept: tuple[gptrs.Tensor, gptrs.Tensor], g: object) -> tuple[object, None]:
        x, _ = kept
        by_sine, rest = g  # type: ignore
        assert rest["n"] is None
        return by_sine * F.cos(x) + rest["x"] * x * 2.0, None

    both.defvjp(forward, backward)

    def function(x: gptrs.Tensor, n: gptrs.Tensor) -> tuple[gptrs.Tensor, ...]:
        sine, rest = both(x, n)
        return sine * x, rest["x"], rest["n"]

    require_slopes(function, X, np.array(3))
    require_slopes(lambda x: both(x, np.array(3))[0], X)
    tangent = gptrs.jvp(function, (X, np.array(3)), (X, None))[1]
    np.testing.assert_allclose(tangent[0].numpy(), X * (np.cos(X) * X + np.sin(X)))
    second = gptrs.hessian_vector(lambda x: F.sum(both(x, np.array(3))[0]), (X,), (X,))
    np.testing.assert_allclose(second[0].numpy(), -np.sin(X) * X)


def test_a_closed_over_tensor_is_constant_or_refused() -> None:
    weight = gptrs.tensor(X)

    def made(w: gptrs.Tensor) -> gptrs.custom_vjp:  # type: ignore
        @gptrs.custom_vjp
        def scaled(x: gptrs.Tensor) -> gptrs.Tensor:
            return x * w

        scaled.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
        return scaled

    np.testing.assert_array_equal(gptrs.grad(lambda x: F.sum(made(weight)(x)))(X).numpy(), X)
    with pytest.raises(UsageError, match="closes over a tensor"):
        gptrs.grad(lambda w: F.sum(made(w)(weight)))(X)


def test_what_is_wrong_with_a_given_derivative() -> None:
    @gptrs.custom_vjp
    def own(x: gptrs.Tensor) -> gptrs.Tensor:
        return x * 2.0

    with pytest.raises(UsageError, match="no derivative yet"):
        own(gptrs.tensor(X))
    own.defvjp(lambda x: x, lambda _, g: (g,))
    with pytest.raises(UsageError, match="must return a pair"):
        gptrs.grad(lambda x: F.sum(own(x)))(X)
    own.defvjp(lambda x: (F.sum(x), None), lambda _, g: (g,))
    with pytest.raises(UsageError, match=r"tensors \(f64\[4, 3\]\), got \(f64\[\]\)"):
        gptrs.grad(lambda x: F.sum(own(x)))(X)
    own.defvjp(lambda x: (x * 2.0, None), lambda _, g: (F.sum(g),))
    with pytest.raises(UsageError, match="`backward` of `own` returns"):
        gptrs.grad(lambda x: F.sum(own(x)))(X)
    with pytest.raises(UsageError, match="by position"):
        own(x=gptrs.tensor(X))


# Recomputation.


def block(h: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
    return F.tanh(F.tanh(h @ w) @ w)


def _loss(call: object) -> object:
    def loss(x: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        for _ in range(2):
            x = call(x, w)  # type: ignore
        return F.sum(x * x)

    return loss


def test_a_recomputed_function_has_the_same_derivative() -> None:
    w = X[:3]
    plain, again = (
        gptrs.jit(gptrs.value_and_grad(_loss(each), (0, 1)))
        for each in (block, gptrs.remat(block))  # type: ignore
    )
    (value, one), (same, other) = plain(X, w), again(X, w)
    assert value.item() == same.item()
    for by_plain, by_again in zip(one, other, strict=True):
        np.testing.assert_allclose(by_plain.numpy(), by_again.numpy(), rtol=1e-13)
    require_slopes(lambda x, w: gptrs.remat(block)(x, w), X, w)
    _along = gptrs.jvp(gptrs.remat(block), (X, w), (X, None))[1]
    np.testing.assert_allclose(_along.numpy(), gptrs.jvp(block, (X, w), (X, None))[1].numpy())


def test_the_optimizer_does_not_merge_what_is_recomputed() -> None:
    program = gptrs.jit(gptrs.grad(_loss(gptrs.remat(block)))).lower(X, X[:3])  # type: ignore
    backend = gptrs.get_backend("ref")
    found = optimize(program, backend, None, False, None).program.main.body
    forward = sum(made.op.name == "tanh" for made in found.instructions)
    branches = [made for made in found.instructions if isinstance(made.op, Cond)]
    assert forward == 4
    assert len(branches) == 2
    inside = [sum(inner.op.name == "tanh" for inner in made.regions[0].walk()) for made in branches]
    assert inside == [2, 2]


def test_remat_takes_keywords_and_closes_over_weights() -> None:
    w = gptrs.tensor(X[:3])

    @gptrs.remat
    def layer(p: dict[str, gptrs.Tensor], scale: float = 1.0) -> list[gptrs.Tensor]:
        return [F.sin(p["x"] @ w) * scale]

    found = gptrs.grad(lambda x: F.sum(layer({"x": x}, scale=2.0)[0]))(X)
    np.testing.assert_allclose(found.numpy(), 2 * np.cos(X @ X[:3]) @ X[:3].T)
    by_weight = gptrs.grad(lambda w: F.sum(gptrs.remat(lambda x: F.sin(x @ w))(X)))(X[:3])
    np.testing.assert_allclose(by_weight.numpy(), X.T @ np.cos(X @ X[:3]))


def test_stop_gradient() -> None:
    found = gptrs.grad(lambda x: F.sum(F.stop_gradient(x) * x))(X)
    np.testing.assert_array_equal(found.numpy(), X)
    values = gptrs.tensor(X)
    np.testing.assert_array_equal(F.stop_gradient(values).numpy(), X)


def test_a_straight_through_estimator() -> None:
    found = gptrs.grad(lambda x: F.sum((x + F.stop_gradient(F.round(x) - x)) * x))(X)
    np.testing.assert_allclose(found.numpy(), X + np.round(X))


def test_dropout_draws_the_same_numbers_backwards() -> None:
    seed = np.array([1, 2], np.uint64)

    def dropped(x: gptrs.Tensor) -> gptrs.Tensor:
        kept = P.compare(P.rng_uniform(gptrs.tensor(seed), x.shape, x.dtype), x * 0 + 0.5, "lt")
        return F.sum(F.where(kept, x, 0.0))

    value, found = gptrs.value_and_grad(dropped)(X)
    np.testing.assert_allclose(value.item(), np.sum(found.numpy() * X))
    assert set(np.unique(found.numpy())) == {0.0, 1.0}
