"""jit captures once, replays, binds what a function uses, and takes nested calls in."""

from __future__ import annotations

import threading
import uuid

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.jitting.jit import Jitted
from gptrs.errors import UsageError
from gptrs.ir import dtypes

pytestmark = pytest.mark.usefixtures("on_backend")


def _ones(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.ones(shape, np.float32))


def test_captures_once_per_signature():
    calls: list[tuple[int, ...]] = []

    @gptrs.jit
    def double(x):
        calls.append(x.shape)
        return x + x

    for value in (1.0, 2.0):
        assert double(gptrs.tensor([value])).numpy().tolist() == [2 * value]
    double(_ones(2))
    double(gptrs.tensor([1]))
    assert calls == [(1,), (2,), (1,)]
    assert double.compiled == 3


def test_lazy_arguments_are_computed_first():
    y = primitives.exp(_ones(2))
    np.testing.assert_allclose(gptrs.jit(lambda x: x * 2)(y).numpy(), 2 * np.e, rtol=1e-6)


def test_results_that_are_arguments_or_equal():
    x = gptrs.tensor([1.0, 2.0])
    same, double, again = gptrs.jit(lambda x: (x, x * 2, x * 2))(x)
    assert same.numpy().tolist() == [1, 2]
    assert double.numpy().tolist() == again.numpy().tolist() == [2, 4]


def test_a_result_that_is_an_argument_has_memory_of_its_own():
    x = gptrs.tensor([1.0, 2.0])
    same = gptrs.jit(lambda x: x)(x)
    gptrs.jit(lambda x: x * 0, donate=0)(same)
    assert x.numpy().tolist() == [1, 2]


def test_functions_without_tensors():
    assert gptrs.jit(lambda: None)() is None
    assert gptrs.jit(lambda n: (n, "text"))(3) == (3, "text")
    assert gptrs.jit(lambda: F.add(gptrs.tensor([1.0]), 1))().item() == 2


def test_closed_over_tensors_are_bound():
    w = gptrs.tensor([3.0])
    step = gptrs.jit(lambda x: x * w)
    assert step(gptrs.tensor([2.0])).item() == 6
    assert step(gptrs.tensor([4.0])).item() == 12


def test_host_arguments_join_the_backend_of_bound_tensors(backend):
    """A function that binds weights has a home; arguments fresh from the host do not fork it."""
    w = gptrs.tensor([3.0]) * 1
    w.numpy()
    step = gptrs.jit(lambda x: x * w)
    first = step(gptrs.tensor([2.0]))
    assert step(first).item() == 18
    assert step(gptrs.tensor([1.0])).item() == 3
    assert step.compiled == 1


def test_methods():
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @gptrs.jit(static="self")
        def __call__(self, x):
            return x * self.by

        @gptrs.jit
        def undeclared(self, x):
            return x

    two, three = Scale(2), Scale(3)
    x = gptrs.tensor([1.0])
    assert [two(x).item(), three(x).item(), two(x).item()] == [2, 3, 2]
    jitted = Scale.__call__
    assert isinstance(jitted, Jitted)
    assert jitted.compiled == 2
    with pytest.raises(UsageError, match=r"value of type `Scale` as `self`.*name the argument in"):
        two.undeclared(x)


def test_nested_jit_becomes_part_of_the_outer_one():
    inner = gptrs.jit(lambda x: {"next": x + 1, "k": 3})
    outer = gptrs.jit(lambda x: inner(x)["next"] * inner(x)["k"])
    assert outer(gptrs.tensor([1.0])).item() == 6
    assert (inner.compiled, outer.compiled) == (0, 1)


def test_a_nested_call_without_arguments_of_the_outer_one_is_part_of_it_too():
    w = gptrs.tensor([2.0])
    inner = gptrs.jit(lambda w: w * 3, donate="w")
    outer = gptrs.jit(lambda x: x + inner(w))
    assert outer(gptrs.tensor([1.0])).item() == 7
    assert inner.compiled == 0
    assert w.item() == 2


def test_recursion_that_would_not_end():
    @gptrs.jit
    def endless(x):
        return endless(x) + 1

    with pytest.raises(UsageError, match="`endless` calls itself with arguments of the same types"):
        endless(_ones(1))


def test_recursion_that_ends():
    @gptrs.jit
    def power(x, n):
        return x * power(x, n - 1) if n else x * 0 + 1

    assert power(gptrs.tensor([3.0]), 4).item() == 81
    assert power.compiled == 1


def test_lower_gives_the_captured_program():
    w = gptrs.tensor([1.0, 2.0])
    calls: list[int] = []

    @gptrs.jit(donate="x")
    def step(x, n):
        calls.append(n)
        return {"unused": x * n, "y": x + w}

    x = _ones(2)
    program = step.lower(x, 3)
    assert step.compiled == 0
    assert x.numpy().tolist() == [1, 1]
    arrays = np.array([[1, 1], [1, 2]], np.float32)
    results = gptrs.run_program(program, dict(zip(program.inputs, arrays, strict=True)))
    assert calls == [3]
    assert results[0].tolist() == [3, 3]
    assert results[1].tolist() == [2, 3]


def test_clear_forgets_what_was_compiled():
    double = gptrs.jit(lambda x: x + x)
    double(_ones(1))
    double.clear()
    assert (double.compiled, double.signatures) == (0, [])
    assert double(_ones(1)).item() == 2
    assert double.compiled == 1


def test_threads_with_one_new_signature_capture_it_once(backend):
    captured: list[int] = []
    together = threading.Barrier(8)
    results: list[float] = []

    @gptrs.jit
    def double(x):
        captured.append(1)
        return x + x

    def call(value: float) -> None:
        with gptrs.use_backend(backend):
            together.wait()
            results.append(double(gptrs.tensor([value])).item())

    threads = [threading.Thread(target=call, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert captured == [1]
    assert sorted(results) == [2.0 * i for i in range(8)]
    assert double.signatures[0].calls == 8


def test_eager_mode_calls_the_function(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    calls = []

    @gptrs.jit
    def double(x):
        calls.append(1)
        return x + x

    for _ in range(2):
        assert double(gptrs.tensor([1.0])).item() == 2
    assert double(np.array([1.5])).item() == 3
    assert len(calls) == 3


def test_eager_mode_may_read_values(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    absolute = gptrs.jit(lambda x: x if x.item() > 0 else -x)
    assert absolute(gptrs.tensor(-2.0)).item() == 2


def test_a_program_lowered_in_eager_mode_computes_its_constants(monkeypatch):
    function = gptrs.jit(lambda x: x + primitives.iota((3,), 0, dtypes.f32))
    x = gptrs.tensor([1.0, 2.0, 3.0])
    wanted = str(function.lower(x))
    monkeypatch.setenv("GPTRS_EAGER", "1")
    assert str(function.lower(x)) == wanted


def test_active_overrides_are_part_of_the_signature():
    name = f"identity_{uuid.uuid4().hex}"  # implementations stay registered
    F.implement("neg", name)(lambda x: x)
    step = gptrs.jit(lambda x: F.neg(x))
    x = gptrs.tensor([1.0])
    assert step(x).item() == -1
    with gptrs.overrides({"neg": name}):
        assert step(x).item() == 1
    assert step(x).item() == -1


def test_a_pinned_call_computes_on_arrays_until_something_else_is_asked_for():
    weight = _ones(3)

    @gptrs.jit
    def double_and_sum(pair, bias):
        return {"sum": pair[0] + pair[1] + weight, "double": pair[0] * 2}

    x, y = _ones(3), _ones(3)
    assert double_and_sum.pin((x, y), None) is None, "nothing is compiled yet"
    double_and_sum((x, y), None)
    pinned = double_and_sum.pin((x, y), None)
    assert pinned is not None
    given = np.arange(3, dtype=np.float32)
    first, second = pinned([given, given]), pinned([given + 1, given])
    assert first is not None
    assert second is not None
    assert [each.tolist() for each in first] == [[1, 3, 5], [0, 2, 4]]
    assert [each.tolist() for each in second] == [[2, 4, 6], [2, 4, 6]]
    first[1].fill(7)
    assert given.tolist() == [0, 1, 2]
    assert pinned([given, given])[1].tolist() == [0, 2, 4]
    name = f"pinned_{uuid.uuid4().hex}"
    F.implement("mul", name)(lambda x, y: x)
    with gptrs.overrides({"mul": name}):
        assert pinned([given, given]) is None
        assert double_and_sum((x, y), None)["double"].numpy().tolist() == [1, 1, 1]

    @gptrs.jit
    def outer(x):
        assert pinned([given, given]) is None, "a capture is open"
        return x

    outer(x)


def test_a_call_that_donates_is_not_pinned():
    @gptrs.jit(donate="x")
    def step(x):
        return x + 1

    step(_ones(2))
    assert step.pin(_ones(2)) is None


def test_calls_with_tensors_alone_follow_what_has_changed_since_the_last_one(monkeypatch):
    weight, ran = gptrs.tensor([10.0]), []

    @gptrs.jit
    def scaled(x, y=weight, times=1):
        ran.append(times)
        return x * y * times

    def value(*args, **kwargs):
        return scaled(*args, **kwargs).numpy().tolist()

    x, y = gptrs.tensor([2.0]), gptrs.tensor([3.0])
    assert [value(x), value(x), value(x, y), value(y, x), value(x)] == [[20], [20], [6], [6], [20]]
    assert [value(x, y, times=4), value(x, y), value(_ones(2), y)] == [[24], [6], [3, 3]]
    assert ran == [1, 4, 1]
    assert sorted(each.calls for each in scaled.signatures) == [1, 1, 6]
    monkeypatch.setenv("GPTRS_EAGER", "1")
    assert value(x, y) == [6]
    assert ran == [1, 4, 1, 1]
    scaled.clear()
    monkeypatch.delenv("GPTRS_EAGER")
    assert value(x, y) == [6]
    assert ran == [1, 4, 1, 1, 1]
