"""Reading and writing at positions: what is refused, and when it runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import ExecutionError, GptrsError
from support.tensors import f32, si64

pytestmark = pytest.mark.usefixtures("on_reference")


MASK = gptrs.tensor([True, False])

REFUSALS = [
    (lambda: F.take(f32(2), f32(2)), "`take` needs an integer `indices`, got `f32[2]`"),
    (lambda: F.take(f32(), si64()), "`take` got axis 0 for `f32[]`, which has 0 axes"),
    (lambda: F.gather(f32(2, 3), si64(3), 1),
     "`gather` of `f32[2, 3]` along axis 1 needs indices of rank 2, no larger on the other axes,"
     " got `si64[3]`"),
    (lambda: F.gather(f32(2, 3), si64(3, 1), 1),
     "`gather` of `f32[2, 3]` along axis 1 needs indices of rank 2, no larger on the other axes,"
     " got `si64[3, 1]`"),
    (lambda: F.gather(f32(2), si64(2), 1), "`gather` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.scatter(f32(2), f32(2), 0, 0), "`scatter` needs an integer `indices`, got"),
    (lambda: F.scatter(f32(2), si64(2), 0, 0, "mean"),
     '`scatter` takes kind="replace", "add", "mul", "max" or "min", got \'mean\''),
    (lambda: F.scatter(f32(2), si64(2), si64(2), 0),
     "`scatter` needs tensors of one element type, got `f32[2]`, `si64[2]`"),
    (lambda: F.scatter(f32(2), si64(2), f32(3), 0),
     "`scatter` needs updates that broadcast to [2], got `f32[3]`"),
    (lambda: F.scatter(si64(2), si64(2), 0.5, 0), "the number 0.5 is not a value of si64"),
    (lambda: F.scatter(MASK, si64(2), True, 0, "add"),
     "`scatter` of kind `add` needs an integer, floating-point or complex `x`, got `i1[2]`"),
    (lambda: f32(2, 3)[2], "`index` got 2 for axis 0 of `f32[2, 3]`"),
    (lambda: f32(2, 3)[..., -4], "`index` got -4 for axis 1 of `f32[2, 3]`"),
    (lambda: f32(0)[0], "`index` got 0 for axis 0 of `f32[0]`"),
    (lambda: f32(2)[0, 0], "`index` of `f32[2]` got 2 entries for 1 axes"),
    (lambda: f32()[0], "`index` of `f32[]` got 1 entries for 0 axes"),
    (lambda: f32(2)[..., ...], "`index` of `f32[2]` got more than one `...`"),
    (lambda: f32(2)[::0], "`slice` of `f32[2]` cannot walk in steps of 0"),
    (lambda: f32(2)[True], "`index` takes ints, slices, None, `...` and a tensor, got `bool`"),
    (lambda: f32(2)["a"], "`index` takes ints, slices, None, `...` and a tensor, got `str`"),
    (lambda: f32(2)[np.array([0, 1])],
     "`index` takes ints, slices, None, `...` and a tensor, got `ndarray`"),
    (lambda: f32(2)[[0, 1]], "`index` takes ints, slices, None, `...` and a tensor, got `list`"),
    (lambda: f32(2)[0.5:], "`index` takes slices of ints and None, got `float`"),
    (lambda: f32(2)[MASK], "`take` needs an integer `indices`, got `i1[2]`"),
    (lambda: f32(2, 3)[:, si64(2)],
     "`index` of `f32[2, 3]` takes a tensor for the first axis only, got `si64[2]`"),
    (lambda: f32()[si64(2)], "`index` of `f32[]` got 1 entries for 0 axes"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_refusal(call, message):
    with pytest.raises(GptrsError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[i],
        lambda x, i: F.take(x, i, 1),
        lambda x, i: F.gather(x, F.reshape(i, (1, 2)), 1),
        lambda x, i: F.scatter(x, F.reshape(i, (1, 2)), 1, 1),
    ],
)
@pytest.mark.parametrize("wrong", [3, -1])
def test_an_index_outside_the_axis_names_itself(call, wrong):
    with pytest.raises(ExecutionError, match=rf"index {wrong}\b"):
        call(gptrs.tensor(np.zeros((3, 3), np.float32)), gptrs.tensor([0, wrong])).numpy()


def test_numpy_integers_index():
    x = gptrs.tensor([[1, 2], [3, 4]])
    assert x[np.int64(1), np.int32(-1)].item() == 4


def test_the_last_of_several_updates_stays():
    x, places = f32(3), gptrs.tensor([1, 1, 1])
    updates = gptrs.tensor([5.0, 6.0, 7.0])
    assert F.scatter(x, places, updates, 0).numpy().tolist() == [0, 7, 0]


def test_an_element_cannot_be_assigned():
    with pytest.raises(TypeError, match="item assignment"):
        f32(2)[0] = 1


def test_a_traced_index_is_read_when_the_step_runs():
    rows = gptrs.jit(lambda x, i: x[i])
    x = gptrs.tensor([[1.0], [2.0], [3.0]])
    assert rows(x, gptrs.tensor(2)).numpy().tolist() == [3]
    assert rows(x, gptrs.tensor(0)).numpy().tolist() == [1]
    assert rows.compiled == 1
