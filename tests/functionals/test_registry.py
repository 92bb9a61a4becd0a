"""Functionals can be replaced by name, and wrong names say what exists."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gptrs
from functionals.temporary import implemented
from gptrs import functionals as F
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.override_policy import Benchmark, Force, Prefer, parse_policy


def _needs_a_vector(x):
    return None if x.rank == 1 else f"it needs a vector, got `{x.type}`"


@pytest.fixture(scope="module", autouse=True)
def _implementations():
    tanh = {
        "test_double": lambda x: x * 2,
        "test_zero": lambda x: x * 0,
        "test_vector": lambda x: x * 3,
        "test_careless": lambda x: x,
        "test_wrapped": lambda x: F.tanh(x) + F.silu(x),
    }
    declines = {"test_vector": _needs_a_vector, "test_careless": lambda x: True}
    silu = {"test_one": lambda x: x * 0 + 1}
    with implemented("tanh", tanh, declines), implemented("silu", silu):
        yield


X = [1.0, 2.0]


def test_every_functional_has_a_portable_implementation():
    known = F.implementations()
    assert {"softmax", "layer_norm", "gelu", "attention", "linear", "embedding"} <= known.keys()
    assert all(names[0] == "portable" for names in known.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.softmax(np.ones(3)), "`softmax` takes a tensor as `x`, got `ndarray`"),
        (lambda: F.linear(gptrs.ones([2]), [[1.0, 2.0]]), "as `weight`, got `list`"),
        (lambda: F.gelu(x=1.0), "`gelu` takes a tensor as `x`, got `float`"),
    ],
)
def test_an_array_in_place_of_a_tensor_is_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_wrong_call_stays_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        F.softmax(gptrs.ones([2]), axes=1)


def test_an_override_holds_in_its_scope():
    x = gptrs.tensor([1.0])
    with F.overrides({"tanh": "test_double"}):
        assert F.tanh(x).item() == 2
        with gptrs.overrides({"tanh": "force=test_zero"}):
            assert F.tanh(x).item() == 0
            with gptrs.overrides({"tanh": "portable"}):
                assert F.tanh(x).item() == pytest.approx(np.tanh(1))
        assert F.tanh(x).item() == 2
    assert F.tanh(x).item() == pytest.approx(np.tanh(1))


def test_scopes_of_other_functionals_add_up():
    x = gptrs.tensor([1.0])
    with gptrs.overrides({"tanh": "test_double"}), gptrs.overrides({"silu": "test_one"}):
        assert (F.tanh(x).item(), F.silu(x).item()) == (2, 1)


def test_a_scope_ends_with_an_error():
    with pytest.raises(KeyError), gptrs.overrides({"tanh": "test_zero"}):
        raise KeyError
    assert F.tanh(gptrs.tensor([1.0])).item() > 0.7


def test_operators_and_methods_follow_overrides():
    x = gptrs.tensor(X)
    with gptrs.overrides({"tanh": "test_double"}):
        assert x.tanh().numpy().tolist() == [2, 4]


def test_other_threads_are_not_affected():
    seen: list[float] = []
    x = gptrs.tensor([1.0])
    x.numpy()
    with gptrs.overrides({"tanh": "test_zero"}):
        thread = threading.Thread(target=lambda: seen.append(F.tanh(x).item()))
        thread.start()
        thread.join()
    assert seen == [pytest.approx(np.tanh(1))]


def test_an_implementation_may_call_what_it_implements():
    x = gptrs.tensor([1.0])
    with gptrs.overrides({"tanh": "test_wrapped", "silu": "test_one"}):
        assert F.tanh(x).item() == pytest.approx(np.tanh(1) + 1)


def test_jit_captures_anew_when_a_policy_changes():
    step = gptrs.jit(lambda x: F.tanh(x))
    x = gptrs.tensor([1.0])
    plain = step(x).item()
    with gptrs.overrides({"tanh": "test_double"}):
        assert step(x).item() == 2
        assert step(x).item() == 2
    with gptrs.overrides({"tanh": "force=test_double"}):  # the same policy in other words
        assert step(x).item() == 2
    assert step.compiled == 2
    assert step(x).item() == plain
    with gptrs.overrides({"tanh": "test_zero"}):
        assert step(x).item() == 0
    assert step.compiled == 3


def test_a_force_that_cannot_be_satisfied_is_an_error():
    x = gptrs.tensor([[1.0]])
    with gptrs.overrides({"tanh": "test_vector"}):
        assert F.tanh(gptrs.tensor(X)).numpy().tolist() == [3, 6]
        with pytest.raises(UsageError) as caught:
            F.tanh(x)
    assert caught.value.message == (
        "`tanh` is forced to `test_vector` by `gptrs.overrides`, which does not take this call:"
        " it needs a vector, got `f32[1, 1]`"
    )
    hint = caught.value.hint or ""
    assert hint.startswith("`prefer=test_vector` uses `portable` then; the others are `portable`, ")
    assert "`test_double`" in hint


def test_a_preference_falls_back_and_says_so_once(caplog):
    caplog.set_level("INFO", "gptrs")
    with gptrs.overrides({"tanh": "prefer=test_vector"}):
        assert F.tanh(gptrs.tensor(X)).numpy().tolist() == [3, 6]
        for _ in range(2):
            found = F.tanh(gptrs.tensor([[1.0]])).item()
            assert found == pytest.approx(np.tanh(1))
    assert [record.getMessage() for record in caplog.records] == [
        "`tanh` uses `portable` where `test_vector` declines: it needs a vector, got `f32[1, 1]`"
    ]


def test_a_predicate_must_return_a_reason_or_none():
    with (
        gptrs.overrides({"tanh": "test_careless"}),
        pytest.raises(UsageError, match="must return None or the reason against it"),
    ):
        F.tanh(gptrs.tensor(X))


@pytest.mark.parametrize(
    ("functional", "policy", "message"),
    [
        ("sofmax", "portable", r"no functional `sofmax`; did you mean `softmax`"),
        ("\x1b[2J", "portable", r"no functional `\\x1b\[2J.*`; `gptrs list functionals` shows"),
        ("tanh", "fast", r"no implementation `fast`; it has: portable, test_double"),
        ("nosuch", "portable", r"no functional `nosuch`; `gptrs list functionals`"),
        ("tanh", "test_duble", r"no implementation `test_duble`; did you mean `test_double`\?"),
        ("tanh", "benchmrk", r"no implementation `benchmrk`; did you mean `benchmark`\?"),
        ("tanh", "forced=portable", r"`forced=portable` is not a policy .*did you mean `force`\?"),
        ("tanh", "benchmark(cache=0)", r"is not a policy .*one of NAME, force=NAME"),
        ("tanh", "benchmark(runs=3)", r"`benchmark\(runs=3\)` is not a policy"),
        ("tanh", "force=benchmark", r"`force=benchmark` is not a policy"),
        ("tanh", "", r"`` is not a policy for the functional `tanh`"),
        ("tanh", 3, r"`3` is not a policy"),
    ],
)
def test_what_does_not_exist_is_an_error_that_names_what_does(functional, policy, message):
    with (
        pytest.raises(UsageError, match=message),
        F.overrides({functional: policy}),
    ):
        pass


def test_an_override_that_is_wrong_leaves_the_others_off():
    with pytest.raises(UsageError), gptrs.overrides({"tanh": "test_zero", "silu": "fast"}):
        pass
    assert F.tanh(gptrs.tensor([1.0])).item() > 0.7


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fast", Force("fast")),
        (" force=fast ", Force("fast")),
        ("prefer=fast.v1-a_b", Prefer("fast.v1-a_b")),
        ("benchmark", Benchmark(64)),
        ("benchmark( cache = 7 )", Benchmark(7)),
    ],
)
def test_policies_as_text(text, policy):
    assert parse_policy("tanh", text) == policy
    assert parse_policy("tanh", str(policy)) == policy


def test_a_name_is_taken_once():
    with pytest.raises(UsageError, match="already has an implementation `portable`"):
        F.implement("tanh", "portable")


@pytest.mark.parametrize("name", ["benchmark", "a b", "", "a=b", "-a"])
def test_names_that_no_policy_could_mean_are_refused(name):
    with pytest.raises(UsageError, match="no implementation of `tanh` can be called"):
        F.implement("tanh", name)


def test_a_functional_is_defined_once():
    with pytest.raises(ValueError, match="functional `tanh` is defined twice"):

        @F.functional
        def tanh(x):
            return x
