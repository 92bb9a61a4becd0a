"""Functionals refuse what they cannot mean, before anything is captured, and say what they need."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import ExecutionError, GptrsError, UsageError
from gptrs.ir import dtypes
from support.tensors import f32, si64

REFUSALS = [
    (lambda: F.softmax(si64(3)), r"`softmax` needs a floating-point `x`, got `si64\[3\]`"),
    (lambda: F.softmax(f32()), r"`softmax` got axis -1 for `f32\[\]`, which has 0 axes"),
    (
        lambda: F.gelu(f32(2), "erf"),
        r"takes approximate=\"none\", \"tanh\" or \"quick\", got 'erf'",
    ),
    (lambda: F.layer_norm(f32(2, 3), f32(2)), r"needs `weight` of shape \[3\], got `f32\[2\]`"),
    (lambda: F.layer_norm(f32(2, 0), f32(0)), r"last axis with elements, got `f32\[2, 0\]`"),
    (lambda: F.embedding(f32(2), f32(3, 4)), r"needs an integer `indices`, got `f32\[2\]`"),
    (lambda: F.embedding(si64(2), f32(3)), r"weight of rank 2, got `f32\[3\]`"),
    (lambda: F.matmul(f32(2, 3), f32(2, 3)), r"`f32\[2, 3\]` and `f32\[2, 3\]`: the last axis"),
    (lambda: F.matmul(f32(), f32(2)), r"`matmul` of `f32\[\]`"),
    (lambda: F.matmul(f32(2, 2, 3), f32(3, 3, 4)), r"\[2\], \[3\] do not broadcast"),
    (lambda: F.linear(f32(2, 3), f32(3, 4)), r"cannot map `f32\[2, 3\]` with .* \(out_in\)"),
    (lambda: F.linear(f32(3), f32(4, 3), f32(3)), r"needs `bias` of shape \[4\]"),
    (lambda: F.attention(f32(2, 3), f32(2, 3), f32(2, 3)), r"rank 4"),
    (
        lambda: F.attention(f32(1, 2, 3, 4), f32(1, 2, 3, 5), f32(1, 2, 3, 4)),
        r"needs `key` of shape \[1, 2, 3, 4\]",
    ),
    (
        lambda: F.attention(*[f32(1, 2, 3, 4)] * 3, mask=si64(3, 3)),
        r"needs an i1 or f32 mask, got `si64\[3, 3\]`",
    ),
    (lambda: F.attention(*[si64(1, 2, 3, 4)] * 3), r"needs f16, bf16, f32 or f64"),
    (lambda: F.add(1, 2), r"`add` needs at least one tensor"),
    (lambda: F.add(f32(2), "x"), r"takes tensors and numbers, got `str`"),
    (lambda: F.add(f32(2), f32(3)), r"\[2\], \[3\] do not broadcast"),
    (lambda: F.split(f32(5), 2), r"cannot cut axis 0 of `f32\[5\]` into 2 equal parts"),
    (lambda: F.slice_axis(f32(5), 0, 4, 2), r"cannot take 2 from 4 on axis 0"),
    (lambda: F.concat([]), r"needs at least one tensor"),
    (lambda: F.reshape(f32(5), (2, -1)), r"does not keep the number of elements, 5"),
    (lambda: F.transpose(f32(2, 3), (0, 0)), r"needs a permutation of 2 axes, got \[0, 0\]"),
    (lambda: gptrs.tensor(np.zeros(2, np.uint8)) + 256, r"number 256 is not a value of ui8"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(GptrsError, match=message):
        call()


def test_tensors_of_two_backends_are_refused():
    from gptrs.plugins.manager import manager

    one, two = (manager().get_backend(None, threads) for threads in (1, 2))
    with gptrs.use_backend(one):
        x = f32(2) + 1
        x.numpy()
    with gptrs.use_backend(two):
        y = f32(2) + 1
        y.numpy()
    with pytest.raises(UsageError, match="tensors of two backends"):
        x + y


def test_an_index_out_of_range_names_itself(backend):
    with gptrs.use_backend(backend):
        rows = F.embedding(gptrs.tensor([1, 7]), f32(3, 2))
        with pytest.raises(ExecutionError, match=r"7.*axis 0.*3"):
            rows.numpy()


def test_integer_division_by_zero_is_an_error(backend):
    with gptrs.use_backend(backend), pytest.raises(ExecutionError, match="zero"):
        (gptrs.tensor([1]) / gptrs.tensor([0])).numpy()


def test_cast_to_the_same_type_is_nothing():
    x = f32(2)
    assert F.cast(x, dtypes.f32) is x
