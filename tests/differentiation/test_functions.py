"""`grad`, `value_and_grad` and `vjp`: arguments, nesting, and errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives as P
from gptrs.errors import UsageError
from gptrs.ir.program import verify
from support.differences import require_slopes

pytestmark = pytest.mark.usefixtures("on_reference")

X = np.array([1.0, 2.0, 3.0])


@dataclass
class Layer:
    weight: gptrs.Tensor
    name: str
    scale: gptrs.Tensor | None = None


def squares(x: gptrs.Tensor) -> gptrs.Tensor:
    return F.sum(x * x)


def test_a_gradient_without_jit_is_a_lazy_tensor() -> None:
    found = gptrs.grad(squares)(gptrs.tensor(X))
    np.testing.assert_array_equal(found.numpy(), 2 * X)


def test_arrays_are_taken_as_tensors() -> None:
    np.testing.assert_array_equal(gptrs.grad(squares)(X).numpy(), 2 * X)


def test_a_gradient_inside_of_jit_is_part_of_its_program() -> None:
    @gptrs.jit
    def step(x: gptrs.Tensor) -> gptrs.Tensor:
        return x - 0.5 * gptrs.grad(squares)(x)

    np.testing.assert_array_equal(step(X).numpy(), 0 * X)
    program = step.lower(X)
    verify(program)
    assert len(program.functions) == 1


def test_jit_of_a_gradient_compiles_once() -> None:
    step = gptrs.jit(gptrs.value_and_grad(squares))
    for factor in (1, 2, 3):
        value, found = step(factor * X)
        assert value.item() == 14 * factor**2
        np.testing.assert_array_equal(found.numpy(), 2 * factor * X)
    assert step.compiled == 1


def test_the_gradient_of_a_jitted_function() -> None:
    np.testing.assert_array_equal(gptrs.grad(gptrs.jit(squares))(X).numpy(), 2 * X)


def test_gradients_of_gradients() -> None:
    third = gptrs.grad(lambda x: F.sum(gptrs.grad(lambda y: F.sum(y * y * y))(x) * x))
    np.testing.assert_allclose(third(X).numpy(), 9 * X**2)  # (3 x^2 * x)'


def test_an_inner_gradient_depends_on_what_its_function_closes_over() -> None:
    def outer(x: gptrs.Tensor) -> gptrs.Tensor:
        return F.sum(gptrs.grad(lambda y: F.sum(x * y * y))(gptrs.tensor(X)))

    np.testing.assert_array_equal(gptrs.grad(outer)(X).numpy(), 2 * X)


def test_any_nesting_comes_back() -> None:
    params = {"b": [Layer(gptrs.tensor(X), "first")], "a": (gptrs.tensor(2.0), None, 7)}

    def loss(params: dict[str, object], shift: float) -> gptrs.Tensor:
        return F.sum(params["b"][0].weight * (params["a"][0].astype("f64") + shift))  # type: ignore

    found = gptrs.grad(loss)(params, 1.0)
    assert list(found) == ["b", "a"]
    assert found["b"][0].name == "first"
    assert found["a"][1:] == (None, 7)
    np.testing.assert_array_equal(found["b"][0].weight.numpy(), [3, 3, 3])
    assert found["a"][0].item() == 6
    assert found["a"][0].dtype.name == "f32"


@pytest.mark.parametrize("argnums", [1, -1, "y", (1,), ["y"]])
def test_argnums_chooses_by_position_or_name(argnums: object) -> None:
    found = gptrs.grad(lambda x, y: F.sum(x * x * y), argnums)(X, 2 * X)  # type: ignore
    only = found[0] if isinstance(argnums, tuple | list) else found
    np.testing.assert_array_equal(only.numpy(), X**2)


@pytest.mark.parametrize("argnums", ["y", 1])
def test_an_argument_passed_by_keyword(argnums: int | str) -> None:
    found = gptrs.grad(lambda x, *, y: F.sum(x * y), argnums)(X, y=2 * X)
    np.testing.assert_array_equal(found.numpy(), X)


def test_has_aux_returns_the_rest() -> None:
    both = gptrs.value_and_grad(lambda x: (squares(x), {"twice": x * 2, "word": "a"}), has_aux=True)
    (value, rest), found = both(X)
    assert value.item() == 14
    assert rest["word"] == "a"
    np.testing.assert_array_equal(rest["twice"].numpy(), 2 * X)
    np.testing.assert_array_equal(found.numpy(), 2 * X)


def test_a_loss_that_is_in_the_rest_too_counts_once() -> None:
    def loss(x: gptrs.Tensor) -> tuple[gptrs.Tensor, gptrs.Tensor]:
        value = squares(x)
        return value, value

    found, rest = gptrs.grad(loss, has_aux=True)(X)
    np.testing.assert_array_equal(found.numpy(), 2 * X)
    assert rest.item() == 14


def test_what_has_no_influence_has_the_gradient_0() -> None:
    by_x, by_y = gptrs.grad(lambda x, y: squares(x), (0, 1))(X, X)
    np.testing.assert_array_equal(by_y.numpy(), 0 * X)
    np.testing.assert_array_equal(by_x.numpy(), 2 * X)


def test_weights_are_constants() -> None:
    weight = gptrs.tensor(X)
    found = gptrs.grad(lambda x: F.sum(x * weight))(X)
    np.testing.assert_array_equal(found.numpy(), X)


def test_other_arguments_may_be_anything() -> None:
    found = gptrs.grad(lambda x, function: F.sum(function(x)))(X, lambda x: x * x)
    np.testing.assert_array_equal(found.numpy(), 2 * X)


def test_vjp_pulls_cotangents_of_any_nesting() -> None:
    returned, pullback = gptrs.vjp(lambda x, y: {"p": x * y, "s": (x + y, 3)}, X, 2 * X)
    np.testing.assert_array_equal(returned["p"].numpy(), 2 * X**2)
    by_x, by_y = pullback({"p": gptrs.tensor(X), "s": (None, None)})
    np.testing.assert_array_equal(by_x.numpy(), 2 * X**2)
    np.testing.assert_array_equal(by_y.numpy(), X**2)
    by_x, by_y = pullback({"p": None, "s": (X, 3)})
    np.testing.assert_array_equal(by_x.numpy(), X)


def test_vjp_has_no_cotangent_of_integers() -> None:
    _, pullback = gptrs.vjp(P.take, X, np.array([0, 0, 2]))
    by_x, by_indices = pullback(gptrs.tensor(X))
    np.testing.assert_array_equal(by_x.numpy(), [3, 0, 3])
    assert by_indices is None


def test_symbolic_sizes() -> None:
    def loss(x: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        h = F.concat([F.softmax(x @ w), w, F.relu(x) @ w], 0)
        return F.sum(F.sort(h * h, 0) * h) + F.sum(F.cumsum(x, 0) * F.max(x, 0))

    sized = gptrs.jit(gptrs.grad(loss, (0, 1)), dynamic={"x": ("N", None)})
    plain = gptrs.jit(gptrs.grad(loss, (0, 1)))
    w = np.random.default_rng(1).standard_normal((3, 3))
    for rows in (4, 5, 9):
        x = np.random.default_rng(rows).standard_normal((rows, 3))
        for one, other in zip(sized(x, w), plain(x, w), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)
    assert sized.compiled == 1


def test_rows_of_a_table_of_symbolic_size() -> None:
    sized = gptrs.jit(
        gptrs.grad(lambda t, i: F.sum(P.take(t, i) * 2.0)), dynamic={"t": ("N", None)}
    )
    found = sized(np.ones((4, 2)), np.array([1, 1, 3])).numpy()
    np.testing.assert_array_equal(found, [[0, 0], [4, 4], [0, 0], [2, 2]])


# What is refused, and what the error says.


def test_integers_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r'floats, got `si64\[3\]` as `x\["a"\]\[0\]`'):
        gptrs.grad(lambda x: F.sum(x["a"][0]))({"a": [np.array([1, 2, 3])]})


def test_numbers_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="holds none") as error:
        gptrs.grad(lambda x: x)(2.0)
    assert "gptrs.tensor" in str(error.value.hint)


def test_a_loss_of_several_elements_is_refused() -> None:
    def twice(x: gptrs.Tensor) -> gptrs.Tensor:
        return x * 2

    with pytest.raises(UsageError, match=r"rank 0 from `twice`, got `f64\[3\]`"):
        gptrs.grad(twice)(X)


def test_aux_needs_a_pair() -> None:
    with pytest.raises(UsageError, match="must return a pair"):
        gptrs.grad(squares, has_aux=True)(X)


@pytest.mark.parametrize("argnums", [2, -3, "z"])
def test_an_argument_that_is_not_passed(argnums: int | str) -> None:
    with pytest.raises(UsageError, match="does not pass"):
        gptrs.grad(lambda x, y: F.sum(x), argnums)(X, X)


def test_an_argument_named_twice() -> None:
    with pytest.raises(UsageError, match="twice"):
        gptrs.grad(lambda x, y: F.sum(x), (0, "x"))(X, X)


def test_cotangents_that_do_not_fit() -> None:
    _, pullback = gptrs.vjp(lambda x: (x, x), X)
    with pytest.raises(UsageError, match="nested"):
        pullback(gptrs.tensor(X))
    with pytest.raises(UsageError, match=r"for a `f64\[3\]` must be like it, got `f32\[3\]`"):
        pullback((gptrs.tensor(X.astype(np.float32)), None))


def test_while_is_refused_with_what_to_use() -> None:
    def loss(x: gptrs.Tensor) -> gptrs.Tensor:
        (last,) = P.while_(lambda s: P.compare(s, s, "ne"), lambda s: s * s, F.sum(x))
        return last

    with pytest.raises(UsageError, match="`while` has no reverse derivative") as error:
        gptrs.grad(loss)(X)
    assert "scan" in str(error.value.hint)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: P.segment_reduce(x, gptrs.tensor([0, 0, 1]), "prod", 2),
        lambda x: P.reduce_window(x, "prod", (2,)),
        lambda x: P.scatter_reduce(x, gptrs.tensor([0, 0, 1]), x, 0, "mul"),
    ],
)
def test_products_over_indices_are_refused(function: object) -> None:
    with pytest.raises(UsageError, match="has no derivative") as error:
        gptrs.grad(lambda x: F.sum(function(x)))(X)  # type: ignore
    assert error.value.hint


def test_what_does_not_reach_the_loss_may_lack_a_derivative() -> None:
    def loss(x: gptrs.Tensor) -> tuple[gptrs.Tensor, gptrs.Tensor]:
        return squares(x), P.reduce_window(x, "prod", (2,))

    found, rest = gptrs.grad(loss, has_aux=True)(X)
    np.testing.assert_array_equal(found.numpy(), 2 * X)
    np.testing.assert_array_equal(rest.numpy(), [2, 6])


def test_reading_a_value_is_an_error_that_says_why() -> None:
    with pytest.raises(UsageError, match=r"not known while .* or a function to differentiate"):
        gptrs.grad(lambda x: F.sum(x) * x[0].item())(X)


def test_eager_mode_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_EAGER", "1")
    np.testing.assert_array_equal(gptrs.grad(squares)(X).numpy(), 2 * X)


def test_composites_by_their_decomposition() -> None:
    random = np.random.default_rng(2)
    x, w = random.standard_normal((1, 5, 6, 2)), random.standard_normal((3, 2, 3, 3))
    require_slopes(lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, w)
    require_slopes(lambda x: F.max_pool(x, 3, stride=2, padding=1), x)
    require_slopes(lambda x: F.average_pool(x, 2), x)
    require_slopes(lambda x: F.gelu(x), x)
    require_slopes(lambda x: F.gelu(x, approximate="tanh"), x)


@pytest.mark.parametrize("axis", [-1, 0])
def test_composites_with_rules_of_their_own(axis: int) -> None:
    random = np.random.default_rng(3)
    x, w, b = random.standard_normal((3, 6)), random.standard_normal(6), random.standard_normal(6)
    require_slopes(lambda x: F.softmax(x, axis), x)
    require_slopes(lambda x: F.log_softmax(x, axis), x)
    require_slopes(lambda x: F.safe_softmax(x, axis), x)
    for form in ("none", "tanh", "quick"):
        require_slopes(lambda x, form=form: F.gelu(2 * x, form), x)
    require_slopes(lambda x, w, b: F.layer_norm(x, w, b), x, w, b)
    require_slopes(lambda x: F.layer_norm(x, axes=(-2, -1)), x)
    require_slopes(lambda x, w: F.rms_norm(x, w, weight_offset=1), x, w)


@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"causal": True, "window": 2}])
def test_attention_with_shared_heads(settings: dict[str, object]) -> None:
    random = np.random.default_rng(4)
    q = random.standard_normal((1, 4, 3, 2))
    k, v = random.standard_normal((2, 1, 2, 5, 2))
    require_slopes(lambda q, k, v: F.attention(q, k, v, softcap=2.0, **settings), q, k, v)  # type: ignore


def test_a_composite_is_what_its_decomposition_says() -> None:
    def other(x: gptrs.Tensor) -> gptrs.Tensor:
        (found,) = P.composite("softmax.v1", lambda x: x * x, {"x": x}, {"axis": -1})
        return found

    require_slopes(other, np.arange(6.0).reshape(2, 3))
    require_slopes(lambda x: P.composite("softmax.v1", lambda x: x * x, {"y": x})[0], X)


def test_a_functional_is_one_composite_in_the_forward_part() -> None:
    program = gptrs.jit(gptrs.grad(lambda x: F.sum(F.softmax(x) * x))).lower(X)
    names = [made.op.title for made in program.main.body.instructions]
    assert names.count("softmax") == 1
    assert "exp" not in names


def test_cotangents_of_neighbouring_slices_are_put_together() -> None:
    """The derivative of a layer of queries, keys and values writes no zeros, which it would add."""
    weights = np.arange(24.0).reshape(2, 12) ** 2

    def loss(x: gptrs.Tensor) -> gptrs.Tensor:
        parts = [P.slice(x, [0, at], [2, 4]) * weights[:, at : at + 4] for at in (0, 4, 8)]
        return F.sum(parts[0] + parts[1] + parts[2])

    def gaps(x: gptrs.Tensor) -> gptrs.Tensor:
        first, last = (P.slice(x, [0, at], [2, size]) for at, size in ((1, 4), (5, 3)))
        return F.sum(first * 2.0) + F.sum(last * 3.0) + F.sum(P.slice(x, [0, 4], [2, 2]) * 5.0)

    x = np.ones((2, 12))
    step = gptrs.jit(gptrs.grad(loss))
    np.testing.assert_array_equal(step(x).numpy(), weights)
    assert "pad" not in str(step.lower(x))
    found = gptrs.grad(gaps)(x).numpy()
    np.testing.assert_array_equal(found, [[0, 2, 2, 2, 7, 8, 3, 3, 0, 0, 0, 0]] * 2)
