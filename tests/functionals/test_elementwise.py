"""Elementwise functionals: what they refuse, and how many times they round."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.graph import GraphSlice
from gptrs.errors import ExecutionError, GptrsError, UsageError
from gptrs.ir import dtypes
from gptrs_conformance.numerics import decode
from support.tensors import cf32, f32, i1, si64

pytestmark = pytest.mark.usefixtures("on_reference")


def _f64(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape))


FLOAT_ONLY = (
    "leaky_relu", "elu", "sigmoid", "hard_sigmoid", "softplus", "silu", "hard_swish",
    "gelu", "softmax", "log_softmax", "erf", "floor", "ceil", "round", "tan", "sinh", "cosh",
    "asin", "acos", "atan", "asinh", "acosh", "atanh",
)  # fmt: skip
FLOAT_OR_COMPLEX = (
    "reciprocal", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "is_finite",
    "is_nan",
)  # fmt: skip
REAL_ONLY = ("relu", "relu6", "abs", "sign")


@pytest.mark.parametrize("name", FLOAT_ONLY)
@pytest.mark.parametrize("make", [si64, i1, cf32])
def test_floats_only(name, make):
    x = make(3)
    wanted = f"`{name}` needs a floating-point `x`, got `{x.type}`"
    with pytest.raises(UsageError, match=re.escape(wanted)):
        getattr(F, name)(x)


@pytest.mark.parametrize("name", FLOAT_OR_COMPLEX)
@pytest.mark.parametrize("make", [si64, i1])
def test_floats_and_complex_numbers_only(name, make):
    x = make(3)
    wanted = f"`{name}` needs a floating-point or complex `x`, got `{x.type}`"
    with pytest.raises(UsageError, match=re.escape(wanted)):
        getattr(F, name)(x)


@pytest.mark.parametrize("name", REAL_ONLY)
@pytest.mark.parametrize("make", [i1, cf32])
def test_reals_only(name, make):
    x = make(3)
    wanted = f"`{name}` needs an integer or floating-point `x`, got `{x.type}`"
    with pytest.raises(UsageError, match=re.escape(wanted)):
        getattr(F, name)(x)


REFUSALS = [
    (lambda: F.gelu(f32(2), "erf"),
     '`gelu` takes approximate="none", "tanh" or "quick", got \'erf\''),
    (lambda: F.softmax(f32()), "`softmax` got axis -1 for `f32[]`, which has 0 axes"),
    (lambda: F.log_softmax(f32(2), 1), "`log_softmax` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.swiglu(f32(2, 3)), "`swiglu` needs a last axis of even size, got `f32[2, 3]`"),
    (lambda: F.swiglu(f32()), "`swiglu` needs a last axis of even size, got `f32[]`"),
    (lambda: F.geglu(f32(2), f32(1)),
     "`geglu` needs a gate and a value of one type, got `f32[2]` and `f32[1]`"),
    (lambda: F.geglu(si64(2), si64(2)), "`geglu` needs a floating-point `gate`, got `si64[2]`"),
    (lambda: F.add(f32(2), _f64(2)),
     "`add` needs tensors of one element type, got `f32[2]`, `f64[2]`"),
    (lambda: F.add(1, 2.5), "`add` needs at least one tensor, got 1 and 2.5"),
    (lambda: F.add(f32(2), "x"), "`add` takes tensors and numbers, got `str`"),
    (lambda: F.add(f32(2), f32(3)), "`add`: shapes [2], [3] do not broadcast together"),
    (lambda: F.mul(i1(2), i1(2)),
     "`mul` needs an integer, floating-point or complex `lhs`, got `i1[2]`"),
    (lambda: F.add(si64(2), 0.5), "the number 0.5 is not a value of si64"),
    (lambda: F.add(gptrs.tensor([1], dtypes.ui8), -1), "the number -1 is not a value of ui8"),
    (lambda: F.add(gptrs.tensor([1], dtypes.f16), 1e6),
     "the number 1000000.0 is not a value of f16"),
    (lambda: F.add(f32(2), 10**400), " is not a value of f32"),
    (lambda: F.add(f32(2), 1j), "the number 1j is not a value of f32"),
    (lambda: F.equal(i1(2), 1), "the number 1 is not a value of i1"),
    (lambda: F.maximum(gptrs.tensor([1], dtypes.f8e4m3), float("inf")),
     "the number inf is not a value of f8e4m3"),
    (lambda: F.neg(i1(2)), "`neg` needs an integer, floating-point or complex `x`, got `i1[2]`"),
    (lambda: F.remainder(cf32(2), 2),
     "`remainder` needs an integer or floating-point `lhs`, got `cf32[2]`"),
    (lambda: F.pow(si64(2), -1), "`pow` of `si64[2]` needs an exponent >= 0, got -1"),
    (lambda: F.pow(si64(2), si64(2)),
     "`pow` needs a floating-point or complex `lhs`, got `si64[2]`"),
    (lambda: F.clamp(f32(2)), "`clamp` needs `low`, `high`, or both"),
    (lambda: F.clamp(f32(2), 0, _f64()),
     "`clamp` needs tensors of one element type, got `f32[2]`, `f64[]`"),
    (lambda: F.less(cf32(2), 1),
     "`less` needs an i1, integer or floating-point `lhs`, got `cf32[2]`"),
    (lambda: F.where(f32(2), f32(2), 1), "`where` needs an i1 `condition`, got `f32[2]`"),
    (lambda: F.where(i1(2), 1, 2.0), "`where` needs a tensor for `x` or `y`, got 1 and 2.0"),
    (lambda: F.where(i1(2), f32(3), 0), "`where`: shapes [2], [3] do not broadcast together"),
    (lambda: F.where(i1(2), f32(2), si64(2)),
     "`where` needs tensors of one element type, got `f32[2]`, `si64[2]`"),
    (lambda: F.logical_and(si64(2), i1(2)), "`logical_and` needs an i1 `lhs`, got `si64[2]`"),
    (lambda: F.logical_not(si64(2)), "`logical_not` needs an i1 `x`, got `si64[2]`"),
    (lambda: F.bitwise_or(f32(2), 1), "`bitwise_or` needs an i1 or integer `lhs`, got `f32[2]`"),
    (lambda: F.left_shift(i1(2), 1), "`left_shift` needs an integer `lhs`, got `i1[2]`"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_refusal(call, message):
    with pytest.raises(GptrsError, match=re.escape(message)):
        call()


def test_numbers_that_a_float_rounds_are_taken():
    x = gptrs.tensor([1.0], dtypes.f16)
    assert (x + 1e-9).item() == 1
    assert (x * float("-inf")).item() == -np.inf
    assert np.isnan((x * float("nan")).item())
    assert (x + np.float32(2)).item() == 3
    assert (gptrs.tensor([1j], dtypes.cf32) * 1j).item() == -1


@pytest.mark.parametrize("call", [F.remainder, F.fmod, F.floor_divide])
def test_integer_division_by_zero_is_an_error(call):
    with pytest.raises(ExecutionError, match="zero"):
        call(gptrs.tensor([1]), gptrs.tensor([0])).numpy()


def test_a_quotient_of_zero_has_a_sign():
    lhs = np.array([-0.0, 0.0, -0.0, 5.0, -0.0], np.float32)
    rhs = np.array([2.0, -2.0, -2.0, np.inf, np.inf], np.float32)
    found = F.floor_divide(gptrs.tensor(lhs), gptrs.tensor(rhs)).numpy()
    np.testing.assert_array_equal(found, 0)
    np.testing.assert_array_equal(np.signbit(found), [True, True, False, False, True])


def test_integer_powers_wrap():
    assert F.pow(gptrs.tensor([2, 3], dtypes.ui8), 9).numpy().tolist() == [0, 3**9 % 256]


SMALL = (dtypes.f16, dtypes.bf16)
ROUNDED_ONCE = {
    "silu": (F.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu_tanh": (
        lambda x: F.gelu(x, "tanh"),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "gelu_quick": (lambda x: F.gelu(x, "quick"), lambda x: x / (1 + np.exp(-1.702 * x))),
    "softplus": (F.softplus, lambda x: np.logaddexp(0, x)),
    "hard_swish": (F.hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "elu": (lambda x: F.elu(x, 1.7), lambda x: np.where(x > 0, x, 1.7 * np.expm1(x))),
    "softmax": (F.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "log_softmax": (F.log_softmax, lambda x: x - np.logaddexp.reduce(x, -1, keepdims=True)),
    "mean": (lambda x: F.mean(x, -1), lambda x: x.mean(-1)),
    "variance": (lambda x: F.variance(x, -1), lambda x: x.var(-1)),
    "std": (lambda x: F.std(x, -1), lambda x: x.std(-1)),
    "logsumexp": (lambda x: F.logsumexp(x, -1), lambda x: np.logaddexp.reduce(x, -1)),
}


@pytest.mark.parametrize("name", ROUNDED_ONCE)
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_small_floats_are_rounded_once(name, dtype):
    """Nearly every result is the nearest of its type; f32 decides the few that are close calls."""
    call, oracle = ROUNDED_ONCE[name]
    x = np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32).astype(dtype.numpy)
    found = call(gptrs.tensor(x)).numpy()
    assert found.dtype == dtype.numpy
    wanted = oracle(decode(x)).astype(np.float32).astype(dtype.numpy)
    assert np.mean(decode(found) == decode(wanted)) > 0.98


@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_f32_is_not_cast(name):
    call, _ = ROUNDED_ONCE[name]
    captured = GraphSlice([call(f32(2, 3)).source])
    assert captured.nodes
    assert "cast" not in {node.op.name for node in captured.nodes}
