"""Networks in plain JAX: the same numbers on ref and numba, weights closed over or given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="these tests run functions of JAX")

import gptrs_backend_jax  # noqa: E402
from gptrs.errors import UsageError  # noqa: E402

from .network_functions import (  # noqa: E402
    ATTENTION,
    CNN,
    GRU,
    MLP,
    TOKENS,
    attention,
    cnn,
    gru,
    mlp,
    tokens,
)

DICE = np.random.default_rng(2)
NETWORKS = {
    "mlp": (mlp, MLP, DICE.standard_normal((3, 16)).astype(np.float32)),
    "cnn": (cnn, CNN, DICE.standard_normal((2, 8, 8, 3)).astype(np.float32)),
    "attention": (attention, ATTENTION, DICE.standard_normal((2, 6, 32)).astype(np.float32)),
    "gru": (gru, GRU, DICE.standard_normal((7, 8)).astype(np.float32)),
    "tokens": (tokens, TOKENS, DICE.integers(0, 60, (2, 5)).astype(np.int32)),
}


def require_close(found: Any, wanted: Any) -> None:
    """Fail unless two trees of arrays are nearly equal."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-5, 2e-5), found, wanted)


@pytest.mark.parametrize("engine", ["ref", "numba"])
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_arguments(name: str, engine: str) -> None:
    function, weights, x = NETWORKS[name]
    converted = gptrs_backend_jax.from_jax(function, weights, x, backend=engine)
    require_close(converted(weights, x), jax.jit(function)(weights, x))


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_closed_over(name: str) -> None:
    function, weights, x = NETWORKS[name]
    converted = gptrs_backend_jax.from_jax(partial(function, weights), x, backend="numba")
    require_close(converted(x), jax.jit(function)(weights, x))
    large = sum(each.size > 1024 for each in weights.values())
    assert len(converted.program(x).inputs) == 1 + large  # large constants are weights


@pytest.mark.parametrize("name", ["mlp", "attention", "tokens"])
def test_one_program_serves_all_batches(name: str) -> None:
    function, weights, x = NETWORKS[name]
    (batch,) = jax.export.symbolic_shape("batch")
    example = jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)
    converted = gptrs_backend_jax.from_jax(partial(function, weights), example, backend="numba")
    assert "[?0, " in str(converted.program(x))
    for count in (2, 5):
        more = np.concatenate([x] * count)
        require_close(converted(more), jax.jit(function)(weights, more))


def test_a_result_that_depends_on_an_unknown_quotient_of_sizes_is_compiled_for_each() -> None:
    (n,) = jax.export.symbolic_shape("n")
    example = jax.ShapeDtypeStruct((n,), np.float32)

    def half(x: Any) -> Any:
        return x[: x.shape[0] // 2] * x.shape[0]

    converted = gptrs_backend_jax.from_jax(half, example, backend="ref")
    for count in (4, 7, 1):
        x = np.arange(count, dtype=np.float32)
        assert converted(x).tolist() == (x[: count // 2] * count).tolist()


def test_arguments_that_do_not_fit_are_refused() -> None:
    function, weights, x = NETWORKS["mlp"]
    converted = gptrs_backend_jax.from_jax(function, weights, x, backend="ref")
    with pytest.raises(UsageError, match="structure"):
        converted(x)
    with pytest.raises(UsageError, match="got an array of float16"):
        converted(weights, x.astype(np.float16))
    with pytest.raises(UsageError, match=r"got an array of shape \[4, 16\]"):
        converted(weights, np.ones((4, 16), np.float32))


def test_unused_and_named_arguments_stay_where_they_were() -> None:
    def function(unused: Any, x: Any, *, scale: Any) -> Any:
        del unused
        return {"scaled": x * scale}

    x = np.ones(3, np.float32)
    converted = gptrs_backend_jax.from_jax(function, x, x, scale=np.float32(2), backend="ref")
    assert converted(x, x + 1, scale=np.float32(3))["scaled"].tolist() == [6, 6, 6]


def test_types_of_64_bits_are_taken_as_jax_does() -> None:
    places = np.array([1, 0, 2])
    converted = gptrs_backend_jax.from_jax(lambda i, x: x[i], places, np.ones(3), backend="ref")
    assert converted(places, np.array([1.5, 2, 3])).tolist() == [2, 1.5, 3]
    with pytest.raises(UsageError, match="integers that do not fit"):
        converted(places + 2**32, np.ones(3))


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_keys_of_random_numbers_go_in_and_come_out(generator: str) -> None:
    def function(state: Any) -> Any:
        first, second = jax.random.split(state["key"])
        return {"key": first, "drawn": jax.random.bits(second, (3,))}

    state = {"key": jax.random.key(5, impl=generator)}
    found = gptrs_backend_jax.from_jax(function, state, backend="ref")(state)
    wanted = function(state)
    assert np.array_equal(found["drawn"], wanted["drawn"])
    assert (found["key"] == wanted["key"]).all()
