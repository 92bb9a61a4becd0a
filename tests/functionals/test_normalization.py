"""Normalizations refuse what does not fit, and capture what optimizers can fold and match."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from functionals.calls import ops_of, running_on, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError

X = zeros(2, 5, 6)
C = zeros(6)

REFUSALS = [
    *(
        (
            lambda call=call: call(zeros(2, 5, 6, dtype="i8")),
            f"`{name}` needs a floating-point `x`, got `si64[2, 5, 6]`",
        )
        for name, call in {
            "layer_norm": F.layer_norm,
            "rms_norm": F.rms_norm,
            "batch_norm": lambda x: F.batch_norm(x, C, C),
            "group_norm": lambda x: F.group_norm(x, 2),
            "instance_norm": F.instance_norm,
            "l2_normalize": F.l2_normalize,
        }.items()
    ),
    *(
        (
            lambda call=call: call(X, zeros(5)),
            f"`{name}` needs `weight` of shape [6], got `f32[5]`",
        )
        for name, call in {
            "layer_norm": F.layer_norm,
            "rms_norm": F.rms_norm,
            "batch_norm": lambda x, w: F.batch_norm(x, C, C, w),
            "group_norm": lambda x, w: F.group_norm(x, 2, w),
            "instance_norm": F.instance_norm,
        }.items()
    ),
    *(
        (
            lambda call=call: call(X, zeros(6, dtype="f8")),
            f"`{name}` needs tensors of one element type, got `f32[2, 5, 6]`, `f64[6]`",
        )
        for name, call in {
            "layer_norm": lambda x, b: F.layer_norm(x, C, b),
            "rms_norm": F.rms_norm,
            "batch_norm": lambda x, b: F.batch_norm(x, C, C, C, b),
            "group_norm": lambda x, b: F.group_norm(x, 2, C, b),
            "instance_norm": lambda x, b: F.instance_norm(x, C, b),
        }.items()
    ),
    *(
        (
            lambda call=call, epsilon=epsilon: call(X, epsilon=epsilon),
            f"`{name}` needs a finite `epsilon` >= 0, got {epsilon!r}",
        )
        for epsilon in (-1e-5, float("inf"), float("nan"))
        for name, call in {
            "layer_norm": F.layer_norm,
            "rms_norm": F.rms_norm,
            "batch_norm": lambda x, epsilon: F.batch_norm(x, C, C, epsilon=epsilon),
            "group_norm": lambda x, epsilon: F.group_norm(x, 2, epsilon=epsilon),
            "instance_norm": F.instance_norm,
            "l2_normalize": F.l2_normalize,
        }.items()
    ),
    *(
        (
            lambda axes=axes: F.layer_norm(X, axes=axes),
            f"`layer_norm` needs `axes` that are the last ones of `f32[2, 5, 6]`, got {axes}",
        )
        for axes in ((), (0,), (0, 2), (2, -1))
    ),
    (
        lambda: F.layer_norm(X, axes=(3,)),
        "`layer_norm` got axis 3 for `f32[2, 5, 6]`, which has 3 axes",
    ),
    (
        lambda: F.layer_norm(X, C, axes=(-2, -1)),
        "`layer_norm` needs `weight` of shape [5, 6], got `f32[6]`",
    ),
    (
        lambda: F.layer_norm(zeros(2, 0)),
        "`layer_norm` needs a last axis with elements, got `f32[2, 0]`",
    ),
    (
        lambda: F.layer_norm(zeros(2, 0, 3), axes=(1, 2)),
        "`layer_norm` needs last 2 axes with elements, got `f32[2, 0, 3]`",
    ),
    (lambda: F.rms_norm(zeros()), "`rms_norm` got axis -1 for `f32[]`, which has 0 axes"),
    (
        lambda: F.rms_norm(zeros(2, 0)),
        "`rms_norm` needs a last axis with elements, got `f32[2, 0]`",
    ),
    (
        lambda: F.batch_norm(X, C, zeros(5)),
        "`batch_norm` needs `variance` of shape [6], got `f32[5]`",
    ),
    (
        lambda: F.batch_norm(X, C, C, axis=1),
        "`batch_norm` needs `mean` of shape [5], got `f32[6]`",
    ),
    (
        lambda: F.batch_norm(X, C, zeros(6, dtype="f8")),
        "`batch_norm` needs tensors of one element type, got `f32[2, 5, 6]`, `f32[6]`, `f64[6]`",
    ),
    (
        lambda: F.batch_norm(X, C, C, axis=3),
        "`batch_norm` got axis 3 for `f32[2, 5, 6]`, which has 3 axes",
    ),
    (
        lambda: F.group_norm(X, 4),
        "`group_norm` needs `groups` that divide the 6 channels of `f32[2, 5, 6]`, got 4",
    ),
    (
        lambda: F.group_norm(X, 0),
        "`group_norm` needs `groups` that divide the 6 channels of `f32[2, 5, 6]`, got 0",
    ),
    (
        lambda: F.group_norm(C, 2),
        "`group_norm` needs `x` [N, .., C] of rank 2 or more, with elements in each sample, got"
        " `f32[6]`",
    ),
    (
        lambda: F.instance_norm(zeros(2, 6)),
        "`instance_norm` needs `x` [N, .., C] of rank 3 or more, with elements in each sample, got"
        " `f32[2, 6]`",
    ),
    (
        lambda: F.instance_norm(zeros(2, 0, 6)),
        "`instance_norm` needs `x` [N, .., C] of rank 3 or more, with elements in each sample, got"
        " `f32[2, 0, 6]`",
    ),
    (
        lambda: F.l2_normalize(X, axis=-4),
        "`l2_normalize` got axis -4 for `f32[2, 5, 6]`, which has 3 axes",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message == message


MEAN = ["mul", "reduce", "div"]
STANDARDIZED = [*MEAN, "sub", *MEAN, "sub", "mul", *MEAN, "add", "rsqrt", "mul"]


def test_what_is_captured() -> None:
    assert ops_of(F.layer_norm, X) == STANDARDIZED
    assert ops_of(F.layer_norm, X, C, C) == [*STANDARDIZED, "mul", "add"]
    assert ops_of(F.instance_norm, X, C, C) == [*STANDARDIZED, "mul", "add"]
    ops = ops_of(lambda x: F.group_norm(x, 2), X)
    assert ops == ["reshape", *STANDARDIZED, "reshape"]
    rms = ["mul", "reduce", "div", "add", "rsqrt", "mul", "mul"]
    assert ops_of(F.rms_norm, X, C) == rms
    ops = ops_of(lambda x, w: F.rms_norm(x, w, weight_offset=1), X, C)
    assert ops == [*rms[:-1], "add", "mul"]


def test_batch_norm_is_one_product_and_one_sum_of_the_whole() -> None:
    """All else is of the size of the parameters, and folds."""
    main = gptrs.jit(F.batch_norm).lower(X, C, C, C, C).main.body
    steps = list(main.walk())
    whole = [step.op.name for step in steps if step.result.type == X.type]
    assert whole == ["broadcast_to", "mul", "broadcast_to", "add"]
    assert [step.op.name for step in steps if main.params[0] in step.operands] == ["mul"]
    assert {step.result.type.shape for step in steps} == {X.shape, C.shape, ()}


@pytest.mark.parametrize("call", [F.layer_norm, F.rms_norm, F.instance_norm, F.l2_normalize])
def test_squares_of_f16_do_not_overflow(backend, call) -> None:
    x = np.array([[[1000.0], [-1000.0]], [[3000.0], [-3000.0]]], np.float16)
    x = np.ascontiguousarray(np.broadcast_to(x, (2, 2, 4)))
    x[..., ::2] *= -1
    with running_on(backend):
        out = call(gptrs.tensor(x)).numpy()
    assert out.dtype == np.float16
    length = 0.5 if call is F.l2_normalize else 1.0
    np.testing.assert_array_equal(out, np.sign(x) * length)


def test_a_vector_of_zeros_stays_so(backend) -> None:
    with running_on(backend):
        np.testing.assert_array_equal(F.l2_normalize(C).numpy(), np.zeros(6))
        np.testing.assert_array_equal(F.layer_norm(C).numpy(), np.zeros(6))


def test_nan_stays_in_its_group(backend) -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 2, 6)
    x[0, 1, 0, 2] = np.nan
    with running_on(backend):
        out = F.group_norm(gptrs.tensor(x), 2).numpy()
    assert np.isnan(out[..., :3]).all()
    assert np.isfinite(out[..., 3:]).all()
