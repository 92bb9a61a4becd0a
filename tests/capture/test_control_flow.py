"""Branches, loops and calls captured from Python functions."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.capture import primitives as P
from gptrs.errors import ExecutionError, ProgramError, UnsupportedError, UsageError
from gptrs.ir import TensorType, dtypes
from gptrs.ir.ops.control_flow import Cond


@pytest.fixture(autouse=True)
def _on_backend(backend):
    if backend.refusal(Cond(), [TensorType(dtypes.i1, ())], [TensorType(dtypes.f32, ())]):
        pytest.skip(f"`{backend.name}` has no control flow")
    with gptrs.use_backend(backend):
        yield


def number(value, dtype=np.int32):
    return gptrs.tensor(np.array(value, dtype))


def below(limit):
    def condition(i, *rest):
        return P.compare(i, limit, "lt")

    return condition


def test_cond_runs_one_branch():
    x, y = gptrs.tensor([1.0, 2.0]), gptrs.tensor([10.0, 20.0])
    for predicate, expected in ((True, [11, 22]), (False, [-1, -2])):
        (result,) = P.cond(number(predicate, bool), lambda a: a + y, lambda a: -a, x)
        assert result.numpy().tolist() == expected


def test_an_error_in_the_other_branch_is_not_raised():
    zero = number(0)

    def divide(a):
        return P.div(a, zero)

    (result,) = P.cond(number(False, bool), divide, lambda a: a, number(7))
    assert result.item() == 7
    (result,) = P.cond(number(True, bool), divide, lambda a: a, number(7))
    with pytest.raises(ExecutionError, match="`div` of integers by zero"):
        result.numpy()


def test_while_reads_its_surroundings():
    limit, step = number(10), number(3)

    def body(i, total):
        return i + step, P.add(total, i)

    i, total = P.while_(below(limit), body, number(0), number(0))
    assert (i.item(), total.item()) == (12, 0 + 3 + 6 + 9)
    i, total = P.while_(below(number(-1)), body, number(0), number(5))
    assert (i.item(), total.item()) == (0, 5)


def test_scan_carries_and_stacks():
    xs, weight = gptrs.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), gptrs.tensor([2.0, 3.0])

    def body(total, x):
        total = total + x * weight
        return total, total

    for reverse, rows in ((False, [0, 1, 2]), (True, [2, 1, 0])):
        (last,), (steps,) = P.scan(body, [gptrs.tensor([0.0, 0.0])], [xs], reverse=reverse)
        expected = np.zeros((3, 2))
        total = np.zeros(2)
        for row in rows:
            total = total + xs.numpy()[row] * [2.0, 3.0]
            expected[row] = total
        np.testing.assert_array_equal(steps.numpy(), expected)
        np.testing.assert_array_equal(last.numpy(), total)


def test_scan_over_nothing_but_a_length():
    (last,), (steps,) = P.scan(lambda i: (i + i, i), [number(1)], [], length=5)
    assert last.item() == 32
    assert steps.numpy().tolist() == [1, 2, 4, 8, 16]


def test_regions_nest_and_share_the_surroundings():
    bias = gptrs.tensor(1.0)

    def step(total, x):
        (kept,) = P.cond(P.compare(x, bias, "gt"), lambda a: a + bias, lambda a: a, x)
        return total + kept, kept

    (total,), (steps,) = P.scan(step, [gptrs.tensor(0.0)], [gptrs.tensor([0.0, 1.0, 2.0])])
    assert steps.numpy().tolist() == [0, 1, 3]
    assert total.item() == 4


def test_inside_jit_and_replayed():
    @gptrs.jit
    def power(x, times):
        i = P.sub(times, times)
        _, result, _ = P.while_(
            lambda i, y, n: P.compare(i, n, "lt"),
            lambda i, y, n: (i + number(1), y * x, n),
            i,
            x,
            times,
        )
        return result

    for times in (0, 1, 4):
        assert power(gptrs.tensor(2.0), number(times)).item() == 2 ** (times + 1)
    assert power.compiled == 1


def test_call_keeps_a_function():
    weight = gptrs.tensor([3.0])

    def scaled(x):
        return x * weight, x

    first, _ = P.call(scaled, gptrs.tensor([2.0]), name="scaled by")
    second, same = P.call(scaled, first)
    assert second.numpy().tolist() == [18]
    assert same.numpy().tolist() == [6]


def test_a_composite_is_its_decomposition_and_a_custom_call_has_none():
    x = gptrs.tensor([1.0, -2.0])
    target = "test.absolute.v1"
    (result,) = P.composite(target, P.abs, {"x": x}, {"k": 1})
    assert result.numpy().tolist() == [1, 2]
    (unknown,) = P.custom_call(target, [x.type], x)
    with pytest.raises(UnsupportedError, match=r"target `test\.absolute\.v1`"):
        unknown.numpy()
    with pytest.raises(UsageError, match=r"reads a `f32\[2\]` from outside"):
        P.composite(target, lambda a: a + x, {"x": x})


def test_two_regions_of_one_shape_are_not_taken_for_one_another():
    x, flag = gptrs.tensor([2.0]), number(True, bool)
    for body, expected in ((lambda a: a + a, 4), (lambda a: a * a * a, 8), (lambda a: -a, -2)):
        (result,) = P.cond(flag, body, lambda a: a, x)
        assert result.item() == expected


def test_eager_mode(monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    test_while_reads_its_surroundings()
    test_regions_nest_and_share_the_surroundings()


def test_refusals():
    x = gptrs.tensor([1.0])
    with pytest.raises(UsageError, match="`then` must return tensors, got a value of type `float`"):
        P.cond(number(True, bool), lambda a: 1.0, lambda a: a, x)
    with pytest.raises(ProgramError, match="results of `else`"):
        P.cond(number(True, bool), lambda a: a, lambda a: (a, a), x)
    with pytest.raises(UsageError, match="not known while the body of a loop or branch"):
        P.cond(number(True, bool), lambda a: a if a.item() else -a, lambda a: a, x)
