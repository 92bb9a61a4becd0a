"""Functionals as composites: one instruction a call, whose decomposition is the body."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import gptrs
from functionals.temporary import implemented
from gptrs import functionals as F
from gptrs.capture.graph import GraphSlice
from gptrs.errors import UsageError
from gptrs.functionals.dispatch import composites as dispatched
from gptrs.ir import Program, print_program, verify
from gptrs.ir.ops.custom_call import Composite
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_backend_ref.backend import RefBackend

X = gptrs.tensor(np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3))
Y = gptrs.tensor(np.ones((4, 3), np.float32))
W = gptrs.tensor(np.array([0.5, 1, 2], np.float32))


def captured(*results: gptrs.Tensor) -> Program:
    graph = GraphSlice([result.source for result in results])
    program = graph.lower(graph.leaves)
    verify(program)
    return program


def composites(program: Program) -> list[Composite]:
    return [step.op for step in program.main.body.walk() if isinstance(step.op, Composite)]


def test_a_call_is_one_instruction_with_its_arguments():
    (made,) = composites(captured(F.layer_norm(X, bias=W, epsilon=1e-3)))
    assert (made.kind, made.operands) == ("layer_norm.v1", "x bias")
    assert dict(made.attrs.items) == {"axes": (-1,), "epsilon": 1e-3}


def test_operands_follow_the_parameters_however_they_are_given():
    one, other = F.layer_norm(bias=W, x=X, weight=X[0]), F.layer_norm(X, X[0], W)
    first, second = composites(captured(one, other))
    assert first == second
    np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_equal_calls_share_a_decomposition_and_others_do_not():
    calls = [F.softmax(X), F.softmax(X * 2), F.softmax(X, 0), F.softmax(Y)]
    names = [each.decomposition for each in composites(captured(*calls))]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_the_body_is_captured_once_for_equal_calls():
    one, other = (cast("Any", F.gelu(x).source).node.functions for x in (X, X + 1))
    assert one == other
    assert one[0] is other[0]


def test_an_override_runs_each_time_and_equal_programs_share_a_function():
    calls = []

    def sigmoid(x, approximate="none"):
        calls.append(x)
        return x * F.sigmoid(x)

    with implemented("gelu", {"sigmoid": sigmoid}), gptrs.overrides({"gelu": "sigmoid"}):
        results = [F.gelu(X), F.gelu(X + 1), F.gelu(Y)]
    assert len(calls) == 3
    made = composites(captured(*results))
    assert {each.kind for each in made} == {"gelu.v1/sigmoid"}
    assert len({each.decomposition for each in made}) == 2


def test_what_is_captured_depends_on_overrides_within():
    query = gptrs.tensor(np.ones((1, 1, 2, 3), np.float32))
    usual = F.attention(query, query, query)

    def plain(x, axis=-1):
        return F.softmax(x, axis) * 2

    with implemented("safe_softmax", {"plain": plain}), gptrs.overrides({"safe_softmax": "plain"}):
        changed = F.attention(query, query, query)
    kinds = [each.kind for each in composites(captured(usual, changed))]
    np.testing.assert_allclose(changed.numpy(), usual.numpy() * 2, rtol=1e-6)
    assert kinds == ["attention.v1", "attention.v1/overridden"]


def test_a_body_runs_once_a_call_under_an_override_within_and_never_under_another(monkeypatch):
    bodies: list[str] = []
    capture = dispatched.capture_body

    def counted(kind, *given):
        bodies.append(kind)
        return capture(kind, *given)

    monkeypatch.setattr(dispatched, "capture_body", counted)
    query = gptrs.tensor(np.ones((1, 1, 2, 7), np.float32))
    plain = {"plain": lambda x, axis=-1: F.softmax(x, axis) * 2}
    with implemented("safe_softmax", plain):
        for override in ({"safe_softmax": "plain"}, {"gelu": "benchmark"}):
            F.attention(query, query, query)
            bodies.clear()
            with gptrs.overrides(override):
                calls = [F.attention(query, query, query) for _ in range(2)]
            assert bodies.count("attention.v1") == (2 if "safe_softmax" in override else 0)
            assert len(composites(captured(*calls))) == 2


def test_an_override_of_something_else_changes_no_kind():
    as_it_is = {"none": lambda x, approximate="none": x}
    with implemented("gelu", as_it_is), gptrs.overrides({"gelu": "none"}):
        (made,) = composites(captured(F.softmax(X)))
    assert made.kind == "softmax.v1"


def test_a_body_that_reads_other_tensors_is_captured_in_place():
    def shifted(x, approximate="none"):
        return x + W

    with implemented("gelu", {"shifted": shifted}), gptrs.overrides({"gelu": "shifted"}):
        result = F.gelu(X)
    assert not composites(captured(result))
    np.testing.assert_array_equal(result.numpy(), X.numpy() + W.numpy())


def test_a_benchmark_inside_is_timed_at_each_call():
    query = gptrs.tensor(np.ones((1, 1, 2, 3), np.float32))
    with gptrs.overrides({"safe_softmax": "benchmark"}):
        result = F.attention(query, query, query)
    assert "attention.v1" not in {each.kind for each in composites(captured(result))}


def test_eager_mode_runs_primitives(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    result = F.softmax(X)
    assert not composites(captured(result))


@pytest.mark.parametrize("call", [lambda: F.softmax(X, 5), lambda: F.layer_norm(X, Y)])
def test_wrong_calls_are_refused_where_they_are_made(call):
    with pytest.raises(UsageError):
        call()


def test_composites_compute_what_their_bodies_do(backend):
    with gptrs.use_backend(backend):
        query = gptrs.tensor(np.random.default_rng(0).standard_normal((1, 2, 3, 4), np.float32))

        def block(x, w):
            return F.attention(x, x, x, causal=True), F.rms_norm(x, w), F.gelu(x, "tanh")

        step = gptrs.jit(block)
        program = step.lower(query, query[0, 0, 0])
        kinds = {each.kind for each in composites(program)}
        assert kinds == {"attention.v1", "rms_norm.v1", "gelu.v1"}
        results = [each.numpy() for each in step(query, query[0, 0, 0])]
    names = program.inputs
    given = dict(zip(names, [query.numpy(), query.numpy()[0, 0, 0]], strict=True))
    for found, wanted in zip(results, gptrs.run_program(program, given, RefBackend()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_inlined_composites_leave_the_functions_of_a_program():
    block = gptrs.jit(lambda x: F.softmax(F.gelu(x)))
    program = block.lower(X)
    inlined = Inlining(calls=False).apply(program)
    assert [each.name for each in inlined.functions] == ["main"]
    assert "composite" not in print_program(inlined)
    assert Inlining(calls=False).apply(inlined) is inlined


def test_symbolic_calls_share_a_decomposition_for_the_sizes_that_it_holds_for():
    step = gptrs.jit(lambda x: F.softmax(x) + F.softmax(x * 2), dynamic={"x": ("rows", None)})
    with gptrs.use_backend("ref"):
        for rows in (2, 5, 9):
            x = np.ones((rows, 3), np.float32)
            np.testing.assert_allclose(step(gptrs.tensor(x)).numpy(), x * 2 / 3, rtol=1e-6)


def test_equal_calls_under_other_overrides_share_a_function():
    def run(x):
        usual = F.softmax(x)
        with gptrs.overrides({"silu": "half"}):
            return usual + F.softmax(x) + F.softmax(F.gelu(x))

    with implemented("silu", {"half": lambda x: x / 2}):
        program = gptrs.jit(run).lower(X)
    verify(program)
    names = [each.decomposition for each in composites(program)]
    assert len(set(names)) == 2
    assert len(program.functions) == 3
