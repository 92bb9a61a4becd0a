"""`jvp` and `hessian_vector`: the forward mode, and both modes together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from differentiation.test_rules import CASES
from gptrs import functionals as F
from gptrs.capture import primitives as P
from gptrs.errors import UsageError
from support.differences import floats_of, weighted

pytestmark = pytest.mark.usefixtures("on_reference")

X = np.random.default_rng(0).standard_normal((5, 3))
V = np.random.default_rng(1).standard_normal((5, 3))


@pytest.mark.parametrize("name", CASES)
def test_the_forward_mode_is_the_transpose_of_the_reverse_mode(name: str) -> None:
    function, given = CASES[name]
    arrays = [np.asarray(each) for each in given]
    random = np.random.default_rng(3)
    moved = [random.standard_normal(x.shape) if x.dtype == np.float64 else None for x in arrays]

    def results(*args: gptrs.Tensor) -> tuple[gptrs.Tensor, ...]:
        return tuple(floats_of(function(*args)))

    values, tangents = gptrs.jvp(results, arrays, moved)
    returned, pullback = gptrs.vjp(results, *arrays)
    weights = [random.standard_normal(each.shape) for each in tangents]
    pulled = pullback(tuple(map(gptrs.tensor, weights)))
    forward = sum(float(np.sum(w * t.numpy())) for w, t in zip(weights, tangents, strict=True))
    backward = sum(
        float(np.sum(g.numpy() * v)) for g, v in zip(pulled, moved, strict=True) if v is not None
    )
    np.testing.assert_allclose(forward, backward, rtol=1e-9, atol=1e-12)
    for value, same in zip(values, returned, strict=True):
        np.testing.assert_array_equal(value.numpy(), same.numpy())


def _along(function: object, x: np.ndarray, v: np.ndarray) -> None:
    """Assert that `jvp` is the difference along `v`."""
    value, tangent = gptrs.jit(lambda x, v: gptrs.jvp(function, (x,), (v,)))(x, v)  # type: ignore
    up, down = (function(gptrs.tensor(x + s * v)).numpy() for s in (1e-6, -1e-6))  # type: ignore
    np.testing.assert_allclose(value.numpy(), function(gptrs.tensor(x)).numpy())  # type: ignore
    np.testing.assert_allclose(tangent.numpy(), (up - down) / 2e-6, rtol=1e-6, atol=1e-7)


def test_while_has_a_forward_derivative() -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        _, last = P.while_(
            lambda n, h: n < 5, lambda n, h: [n + 1, F.sin(h) * x], gptrs.tensor(0), x
        )
        return last

    _along(function, X, V)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_has_a_forward_derivative(reverse: bool) -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        def body(n: gptrs.Tensor, h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            h = F.tanh(h * x) + x
            return [n + 1, h, P.cast(n, h.dtype) * h, n]

        (_, last), (rows, _) = P.scan(body, [gptrs.tensor(1), x[1]], [x], reverse=reverse)
        return rows + last

    _along(function, X, V)


@pytest.mark.parametrize("which", [False, True])
def test_branches_and_calls_have_a_forward_derivative(which: bool) -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        (h,) = P.call(lambda h: F.softmax(h * h), x)
        (found,) = P.cond(gptrs.tensor(which), lambda h: h * x, lambda h: F.ones((5, 3), "f64"), h)
        return found

    _along(function, X, V)


def test_functionals_have_a_forward_derivative() -> None:
    _along(lambda x: F.log_softmax(F.layer_norm(F.gelu(x))), X, V)
    _along(lambda x: F.attention(*[F.reshape(x, (1, 1, 5, 3))] * 3, causal=True), X, V)


def test_jvp_keeps_the_nesting_and_takes_none_for_zero() -> None:
    def function(p: dict[str, gptrs.Tensor], n: gptrs.Tensor) -> dict[str, object]:
        return {"y": p["a"] * p["b"], "n": n, "word": "a", "still": F.sum(p["b"])}

    given = {"a": X, "b": X}, np.array(3)
    value, tangent = gptrs.jvp(function, given, ({"a": V, "b": None}, None))
    np.testing.assert_allclose(tangent["y"].numpy(), V * X)
    assert tangent["n"] is None
    assert (value["word"], tangent["word"]) == ("a", "a")
    assert tangent["still"].item() == 0


def test_tangents_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="nested"):
        gptrs.jvp(lambda x: x, (X,), ((V,),))
    with pytest.raises(UsageError, match=r"must be like it, got `f64\[3\]`"):
        gptrs.jvp(lambda x: x, (X,), (V[0],))
    with pytest.raises(UsageError, match=r"for a `si64\[\]` must be None"):
        gptrs.jvp(lambda x: x, (np.array(1),), (np.array(1),))


# Second derivatives.


SMOOTH = [
    name
    for name in CASES
    if not name.startswith(("pad empty", "sum of nothing", "cast", "over nothing"))
]


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_are_those_of_differences(name: str) -> None:
    function, given = CASES[name]
    arrays = [np.asarray(each) for each in given]
    floats = [at for at, x in enumerate(arrays) if x.dtype == np.float64]

    def loss(*args: gptrs.Tensor) -> gptrs.Tensor:
        whole = [gptrs.tensor(x) for x in arrays]
        for at, each in zip(floats, args, strict=True):
            whole[at] = each
        found = weighted(function)(*whole)
        return found * found + F.sin(found)

    primals = [arrays[at] for at in floats]
    random = np.random.default_rng(7)
    vectors = [random.standard_normal(x.shape) for x in primals]
    found = gptrs.hessian_vector(loss, primals, vectors)
    gradient = gptrs.jit(gptrs.grad(loss, range(len(floats))))

    def at(step: float) -> list[np.ndarray]:
        moved = [x + step * v for x, v in zip(primals, vectors, strict=True)]
        return [each.numpy() for each in gradient(*moved)]

    for each, up, down in zip(found, at(1e-5), at(-1e-5), strict=True):
        wanted = (up - down) / 2e-5
        scale = 1 + np.abs(wanted).max(initial=0)
        np.testing.assert_allclose(each.numpy() / scale, wanted / scale, atol=3e-7)


@pytest.mark.parametrize(
    ("function", "slope", "curvature"), [(F.softplus, 0.5, 0.25), (F.cosh, 0, 1)]
)
def test_smooth_functions_of_the_size_are_smooth_at_zero(
    function: Callable[[gptrs.Tensor], gptrs.Tensor], slope: float, curvature: float
) -> None:
    def loss(x: gptrs.Tensor) -> gptrs.Tensor:
        return F.sum(function(x))

    x = np.array([0.0, -0.0])
    (found,) = gptrs.hessian_vector(loss, (x,), (np.ones(2),))
    np.testing.assert_allclose(found.numpy(), curvature)
    np.testing.assert_allclose(gptrs.grad(loss)(x).numpy(), slope)


def test_a_hessian_of_several_arguments() -> None:
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    by_x, by_y = gptrs.hessian_vector(lambda x, y: F.sum(x * x * y), (x, y), (x, None))
    np.testing.assert_allclose(by_x.numpy(), 2 * y * x)
    np.testing.assert_allclose(by_y.numpy(), 2 * x * x)
