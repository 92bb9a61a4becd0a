"""Reductions, running totals and sorting: what they refuse, and their edges."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import GptrsError
from gptrs.ir import dtypes
from support.tensors import cf32, f32, i1, si64

pytestmark = pytest.mark.usefixtures("on_reference")


NUMBERS = "an integer, floating-point or complex"
REALS = "an integer or floating-point"
ORDERED = "an i1, integer or floating-point"

REFUSALS = [
    (lambda: F.sum(i1(2)), f"`sum` needs {NUMBERS} `x`, got `i1[2]`"),
    (lambda: F.prod(i1(2)), f"`prod` needs {NUMBERS} `x`, got `i1[2]`"),
    (lambda: F.max(cf32(2)), f"`max` needs {REALS} `x`, got `cf32[2]`"),
    (lambda: F.min(i1(2)), f"`min` needs {REALS} `x`, got `i1[2]`"),
    (lambda: F.mean(si64(2)), "`mean` needs a floating-point or complex `x`, got `si64[2]`"),
    (lambda: F.variance(si64(2)), "`variance` needs a floating-point `x`, got `si64[2]`"),
    (lambda: F.std(cf32(2)), "`std` needs a floating-point `x`, got `cf32[2]`"),
    (lambda: F.logsumexp(si64(2)), "`logsumexp` needs a floating-point `x`, got `si64[2]`"),
    (lambda: F.any(si64(2)), "`any` needs an i1 `x`, got `si64[2]`"),
    (lambda: F.all(f32(2)), "`all` needs an i1 `x`, got `f32[2]`"),
    (lambda: F.sum(f32(2, 3), 2), "`sum` got axis 2 for `f32[2, 3]`, which has 2 axes"),
    (lambda: F.sum(f32(), 0), "`sum` got axis 0 for `f32[]`, which has 0 axes"),
    (lambda: F.mean(f32(2, 3), (0, -2)),
     "`mean` of `f32[2, 3]` got axes [0, -2], which name one twice"),
    (lambda: F.argmax(cf32(2)), f"`argmax` needs {ORDERED} `x`, got `cf32[2]`"),
    (lambda: F.argmax(f32(2, 0), 1), "`argmax` of `f32[2, 0]` has no elements to choose from"),
    (lambda: F.argmin(f32(0)), "`argmin` of `f32[0]` has no elements to choose from"),
    (lambda: F.argmin(f32(2), dtype=dtypes.si8),
     "`argmin` needs an si32 or si64 `dtype`, got `si8`"),
    (lambda: F.cumsum(f32(), 0), "`cumsum` got axis 0 for `f32[]`, which has 0 axes"),
    (lambda: F.cumprod(i1(2), 0), f"`cumprod` needs {NUMBERS} `x`, got `i1[2]`"),
    (lambda: F.cummax(cf32(2), 0), f"`cummax` needs {REALS} `x`, got `cf32[2]`"),
    (lambda: F.sort(cf32(2)), f"`sort` needs {ORDERED} `x`, got `cf32[2]`"),
    (lambda: F.sort(f32()), "`sort` got axis -1 for `f32[]`, which has 0 axes"),
    (lambda: F.argsort(f32(2), 1), "`argsort` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.top_k(f32(2, 3), 4), "`top_k` cannot give 4 elements of axis 1 of `f32[2, 3]`"),
    (lambda: F.top_k(f32(2), -1), "`top_k` cannot give -1 elements of axis 0 of `f32[2]`"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_refusal(call, message):
    with pytest.raises(GptrsError, match=re.escape(message)):
        call()


def test_small_floats_are_summed_in_f32():
    """In f16 the sum would stop growing at 2048, in bf16 at 256."""
    for dtype in (dtypes.f16, dtypes.bf16):
        x = gptrs.tensor(np.ones(4000, np.float32), dtype)
        assert F.sum(x).item() == F.cast(gptrs.tensor(4000.0), dtype).item()
        assert F.mean(x).item() == 1
        assert F.variance(x).item() == 0


def test_the_mean_of_large_f16_does_not_overflow():
    x = gptrs.tensor(np.full(10, 60000.0, np.float32), dtypes.f16)
    assert F.mean(x).item() == 60000


def test_integers_wrap_in_their_own_type():
    x = gptrs.tensor([200, 100], dtypes.ui8)
    assert F.sum(x).item() == 44
    assert F.cumsum(x, 0).numpy().tolist() == [200, 44]
    assert F.sum(x).dtype is dtypes.ui8


def test_sort_is_gather_of_argsort():
    x = gptrs.tensor(np.random.default_rng(0).integers(0, 5, (4, 9)))
    for axis in (0, 1):
        for descending in (False, True):
            order = F.argsort(x, axis, descending)
            found = F.gather(x, order, axis).numpy()
            np.testing.assert_array_equal(found, F.sort(x, axis, descending).numpy())


def test_exclusive_totals_start_at_the_identity():
    x = gptrs.tensor([3, 1, 2])
    assert F.cumsum(x, 0, exclusive=True).numpy().tolist() == [0, 3, 4]
    assert F.cumprod(x, 0, reverse=True, exclusive=True).numpy().tolist() == [2, 2, 1]
    assert F.cummax(x, 0, exclusive=True).numpy().tolist() == [-(2**63), 3, 3]
