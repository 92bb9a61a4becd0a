"""Derivatives of branches, loops and calls."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives as P
from gptrs.ir.ops.control_flow import Scan
from support.differences import require_slopes

pytestmark = pytest.mark.usefixtures("on_reference")

_random = np.random.default_rng(0)
X = _random.standard_normal((5, 3))
W = _random.standard_normal((3, 3))


@pytest.mark.parametrize("which", [False, True])
def test_a_branch(which: bool) -> None:
    def function(x: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        chosen = gptrs.tensor(which)
        (found,) = P.cond(chosen, lambda x: F.tanh(x @ w), lambda x: x * x, x)
        return found

    require_slopes(function, X, W)


def test_a_branch_that_is_not_taken_leaves_no_nan() -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        safe = x > 0
        (found,) = P.cond(safe, lambda x: P.log(x), lambda x: x * 2.0, x)
        return found

    assert gptrs.grad(function)(np.float64(0)).item() == 2.0


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_with_weights(reverse: bool) -> None:
    def function(x: gptrs.Tensor, w: gptrs.Tensor, h: gptrs.Tensor) -> tuple[gptrs.Tensor, ...]:
        def body(h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            h = F.tanh(F.reshape(F.reshape(h, (1, 3)) @ w, (3,)) + x)
            return [h, h * x]

        (last,), (outputs,) = P.scan(body, [h], [x], reverse=reverse)
        return last, outputs

    require_slopes(function, X, W, X[0])


def test_a_carry_that_stays_is_not_stacked() -> None:
    def loss(w: gptrs.Tensor, x: gptrs.Tensor) -> gptrs.Tensor:
        def body(h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            return [F.tanh(F.reshape(F.reshape(h, (1, 3)) @ w, (3,)) + x)]

        (last,), _ = P.scan(body, [x[0]], [x])
        return F.sum(last)

    program = gptrs.jit(gptrs.grad(loss)).lower(W, X)
    loops = [
        (made.op, made.results)
        for made in program.main.body.instructions
        if isinstance(made.op, Scan)
    ]
    assert len(loops) == 2
    stacked = [value.type.shape for op, results in loops for value in results[op.carry_count :]]
    assert (5, 3) in stacked
    assert (5, 3, 3) not in stacked


def test_a_carry_that_stays_and_is_returned() -> None:
    def function(w: gptrs.Tensor, x: gptrs.Tensor) -> tuple[gptrs.Tensor, ...]:
        def body(w: gptrs.Tensor, h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            return [w, h * w + x, w * x]

        last, outputs = P.scan(body, [w, x[0]], [x])
        return (*last, *outputs)

    require_slopes(function, W[0], X)


def test_a_loop_with_a_counter_and_a_length() -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        def body(n: gptrs.Tensor, h: gptrs.Tensor) -> list[gptrs.Tensor]:
            return [n + 1, h * P.cast(n, h.dtype) + F.sin(h)]

        (_, last), _ = P.scan(body, [gptrs.tensor(1), x], [], length=4)
        return last

    require_slopes(function, X)


def test_a_carry_that_varies_from_the_second_step_on() -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        def body(a: gptrs.Tensor, b: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            return [b * 2.0, x + a * b]

        one = gptrs.tensor(np.ones(3))
        (a, _), _ = P.scan(body, [one, one], [x])
        return a

    require_slopes(function, X)


def test_no_steps_at_all() -> None:
    def loss(h: gptrs.Tensor, x: gptrs.Tensor) -> gptrs.Tensor:
        (last,), _ = P.scan(lambda h, x: [h * x], [h], [x])
        return F.sum(last * last)

    by_h, by_x = gptrs.grad(loss, (0, 1))(X[0], np.zeros((0, 3)))
    np.testing.assert_array_equal(by_h.numpy(), 2 * X[0])
    assert by_x.shape == (0, 3)


def test_a_loop_in_a_loop_and_second_derivatives() -> None:
    def inner(h: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        (last,), _ = P.scan(lambda h: [F.sin(h * w)], [h], [], length=3)
        return last

    def function(x: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        (last,), _ = P.scan(lambda h, x: [inner(h, w) + x], [x[0]], [x])
        return last

    require_slopes(function, X, W[0])
    require_slopes(lambda x, w: gptrs.grad(lambda x, w: F.sum(function(x, w)), 1)(x, w), X, W[0])


def test_calls_and_a_branch_in_a_loop() -> None:
    def block(h: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        return F.softmax(h * w)

    def function(x: gptrs.Tensor, w: gptrs.Tensor) -> gptrs.Tensor:
        def body(h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            (h,) = P.call(block, h, w)
            return list(P.cond(F.sum(x) > 0, lambda h: h * x, lambda h: h * w, h))

        (last,), _ = P.scan(body, [x[0]], [x])
        return last

    require_slopes(function, X, W[0])


def test_recurrent_layers() -> None:
    def function(x: gptrs.Tensor, w: gptrs.Tensor, h: gptrs.Tensor) -> gptrs.Tensor:
        def body(h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            h = F.rnn_cell(x, h, w)
            return [h, h]

        _, (found,) = P.scan(body, [h], [x])
        return found

    require_slopes(function, X.reshape(5, 1, 3), W, X[:1])


def test_a_loop_that_carries_a_flag() -> None:
    def function(x: gptrs.Tensor) -> gptrs.Tensor:
        def body(flag: gptrs.Tensor, h: gptrs.Tensor, x: gptrs.Tensor) -> list[gptrs.Tensor]:
            chosen = F.where(P.broadcast_to(flag, (3,)), h * x, h + x)
            return [P.logical_not(flag), chosen]

        (_, last), _ = P.scan(body, [gptrs.tensor(True), x[0]], [x])
        return last

    require_slopes(function, X)
