"""Layout, joining, padding and creation: what they refuse, and what they leave out of the graph."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.errors import GptrsError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from support.tensors import f32

pytestmark = pytest.mark.usefixtures("on_reference")


def _f64(*shape: int) -> gptrs.Tensor:
    return gptrs.tensor(np.zeros(shape))


REFUSALS = [
    (lambda: F.cast(gptrs.tensor(np.zeros(2, np.complex64)), dtypes.f32),
     "`cast` of `cf32[2]` to f32 would drop the imaginary part"),
    (lambda: F.reshape(f32(5), (2, -1)), "does not keep the number of elements, 5"),
    (lambda: F.flatten(f32(2, 3), 1, 0), "`flatten` of `f32[2, 3]` cannot go from axis 1 to 0"),
    (lambda: F.flatten(f32(2, 3), 2), "`flatten` got axis 2 for `f32[2, 3]`, which has 2 axes"),
    (lambda: F.squeeze(f32(2, 1), 0), "`squeeze` of `f32[2, 1]` cannot drop axis 0, it is not 1"),
    (lambda: F.squeeze(f32(1), (0, -1)),
     "`squeeze` of `f32[1]` got axes [0, -1], which name one twice"),
    (lambda: F.expand_dims(f32(2), 2),
     "`expand_dims` of `f32[2]` needs positions in a result of 2 axes, each once, got [2]"),
    (lambda: F.expand_dims(f32(2), (0, -3)),
     "`expand_dims` of `f32[2]` needs positions in a result of 3 axes, each once, got [0, -3]"),
    (lambda: F.transpose(f32(2, 3), (0, 0)), "needs a permutation of 2 axes, got [0, 0]"),
    (lambda: F.swap_axes(f32(2), 0, 1), "`swap_axes` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.broadcast_to(f32(2, 3), (3,)),
     "`broadcast_to` of `f32[2, 3]` to [3] needs each dim, aligned at the right, equal or 1"),
    (lambda: F.slice(f32(2, 3), (0,), (1,)),
     "`slice` of `f32[2, 3]` needs 2 starts, stops and steps"),
    (lambda: F.slice(f32(2), (0,), (1,), (0,)), "`slice` of `f32[2]` cannot walk in steps of 0"),
    (lambda: F.slice_axis(f32(5), 0, 4, 2), "`slice_axis` of `f32[5]` cannot take 2 from 4 on"),
    (lambda: F.flip(f32(2), 1), "`flip` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.split(f32(5), 2), "`split` cannot cut axis 0 of `f32[5]` into 2 equal parts"),
    (lambda: F.split(f32(5), 0), "`split` cannot cut axis 0 of `f32[5]` into 0 equal parts"),
    (lambda: F.split(f32(5), (2, 2)),
     "`split` cannot cut axis 0 of `f32[5]` into parts of [2, 2]"),
    (lambda: F.split(f32(5), (6, -1)),
     "`split` cannot cut axis 0 of `f32[5]` into parts of [6, -1]"),
    (lambda: F.concat([]), "`concat` needs at least one tensor"),
    (lambda: F.concat([f32(2), _f64(2)]),
     "`concat` needs tensors of one element type, got `f32[2]`, `f64[2]`"),
    (lambda: F.concat([f32(), f32()]), "`concat` got axis 0 for `f32[]`, `f32[]`"),
    (lambda: F.concat([f32(2, 3), f32(2, 4)]),
     "`concat` needs equal dims on every axis but 0, got `f32[2, 3]`, `f32[2, 4]`"),
    (lambda: F.concat([f32(2, 3), f32(2)]),
     "`concat` needs equal dims on every axis but 0, got `f32[2, 3]`, `f32[2]`"),
    (lambda: F.stack([]), "`stack` needs at least one tensor"),
    (lambda: F.stack([f32(2), f32(1)]),
     "`stack` needs tensors of one shape, got `f32[2]`, `f32[1]`"),
    (lambda: F.stack([f32(2)], 2), "`stack` got axis 2 for `f32[2]`, result of 2 axes"),
    (lambda: F.tile(f32(2), (-1,)), "`tile` of `f32[2]` needs repeats >= 0, got [-1]"),
    (lambda: F.repeat_interleave(f32(2), -1, 0),
     "`repeat_interleave` of `f32[2]` needs repeats >= 0, got -1"),
    (lambda: F.roll(f32(2), 1, 1), "`roll` got axis 1 for `f32[2]`, which has 1 axes"),
    (lambda: F.pad(f32(2), ()), "`pad` of `f32[2]` needs 1 pairs of widths, got []"),
    (lambda: F.pad(f32(2), ((1, 1),), "wrap"),
     '`pad` takes mode="constant", "edge" or "reflect", got \'wrap\''),
    (lambda: F.pad(f32(2), ((-2, -1),)), "`pad` of `f32[2]` trims axis 0 by 3"),
    (lambda: F.pad(f32(2), ((2, 0),), "reflect"),
     "`pad` of `f32[2]` cannot reflect axis 0 by (2, 0)"),
    (lambda: F.pad(f32(2), ((-1, 0),), "edge"), "`pad` of `f32[2]` cannot edge axis 0 by (-1, 0)"),
    (lambda: F.pad(f32(0), ((1, 0),), "edge"), "`pad` of `f32[0]` cannot edge axis 0 by (1, 0)"),
    (lambda: F.pad(gptrs.tensor([1]), ((1, 0),), value=0.5),
     "the number 0.5 is not a value of si64"),
    (lambda: F.arange(1, 2, 0), "`arange` cannot go from 1 to 2 in steps of 0"),
    (lambda: F.arange("a"), "`arange` cannot go from 0 to 'a' in steps of 1"),
    (lambda: F.arange(float("inf")), "`arange` cannot go from 0 to inf in steps of 1"),
    (lambda: F.sum(f32(2), "x"), "`sum` takes an integer as an axis, got `'x'`"),
    (lambda: F.zeros(2, "float23"), "unknown dtype `float23`"),
    (lambda: F.zeros(2, 3), "unknown dtype `3`"),
    (lambda: F.cast(f32(2), str), "NumPy dtype `<U0` has no PTIR counterpart"),
    (lambda: F.arange(2, dtype=dtypes.i1),
     "`arange` needs an integer, floating-point or complex `dtype`, got `i1`"),
    (lambda: F.arange(10_000, dtype=dtypes.bf16),
     "`arange` of 10000 elements counts past 256, the last index exact in bf16"),
    (lambda: F.arange(300, dtype=dtypes.ui8),
     "`arange` of 300 elements counts past 255, the last index exact in ui8"),
    (lambda: F.full((2, -1), 0), "`full` needs dims >= 0, got [2, -1]"),
    (lambda: F.full((2,), 300, dtypes.si8), "the number 300 is not a value of si8"),
    (lambda: F.tril(f32(2)), "`tril` needs matrices [.., M, N], got `f32[2]`"),
    (lambda: F.triu(f32()), "`triu` needs matrices [.., M, N], got `f32[]`"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_refusal(call, message):
    with pytest.raises(GptrsError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("dtype", [dtype for dtype in dtypes.ALL if not dtype.is_bool], ids=str)
def test_arange_counts_in_every_type_of_numbers(backend: Backend, dtype: DType) -> None:
    with gptrs.use_backend(backend):
        assert F.arange(1, 7, 2, dtype).numpy().tolist() == [1, 3, 5]


@pytest.mark.parametrize(
    "numbers", [(5,), (2, 7), (7, 1, -2), (7, 1), (-3,), (0.5, 2.1, 0.25), (3, 3)]
)
def test_arange_goes_as_that_of_numpy(numbers: tuple[float, ...]) -> None:
    found, expected = F.arange(*numbers).numpy(), np.arange(*numbers)
    assert np.allclose(found, expected)
    assert found.shape == expected.shape
    assert found.dtype == (np.int64 if expected.dtype == np.int64 else np.float32)


F32_NAMES = ("f32", "float32", np.float32, np.dtype(">f4"), float, dtypes.f32)


@pytest.mark.parametrize("dtype", F32_NAMES, ids=str)
def test_element_types_are_named_as_users_name_them(dtype: dtypes.DTypeLike) -> None:
    made = [gptrs.zeros(3, dtype), gptrs.ones((3,), dtype), gptrs.full(3, 2, dtype)]
    made += [gptrs.arange(3, dtype=dtype), gptrs.tensor([1, 2, 3], dtype)]
    made += [gptrs.tensor([1, 2, 3]).cast(dtype), gptrs.tensor([1, 2, 3]).astype(dtype)]
    assert {(x.dtype, x.shape) for x in made} == {(dtypes.f32, (3,))}


def test_other_names_of_types():
    names = {"bfloat16": dtypes.bf16, int: dtypes.si64, bool: dtypes.i1, complex: dtypes.cf32}
    names |= {"int4": dtypes.si4, "uint8": dtypes.ui8, "half": dtypes.f16, "bool": dtypes.i1}
    assert {name: dtypes.dtype_of(name) for name in names} == names
    assert gptrs.tensor([3, 1]).argmax(dtype="int32").dtype is dtypes.si32


def test_what_changes_nothing_is_not_captured():
    x = f32(2, 3)
    assert F.cast(x, dtypes.f32) is x
    assert F.broadcast_to(x, (2, 3)) is x
    assert F.concat([x]) is x
    assert F.roll(x, 3, 1) is x
    assert x[:] is x
    assert x[...] is x


WALKS = [None, -9, -4, -1, 0, 2, 4, 9]


@pytest.mark.parametrize("step", [None, 1, 2, 5, -1, -3])
def test_slices_are_those_of_python(step):
    """Every start and stop around an axis of 4 and an empty one."""
    for size in (4, 0):
        x = np.arange(size)
        for start in WALKS:
            for stop in WALKS:
                found = F.slice(gptrs.tensor(x), (start,), (stop,), (step,))
                assert found.shape == x[start:stop:step].shape
    ours = [
        F.slice(gptrs.tensor(np.arange(4)), (start,), (stop,), (step,))
        for start in WALKS
        for stop in WALKS
    ]
    wanted = [np.arange(4)[start:stop:step] for start in WALKS for stop in WALKS]
    np.testing.assert_array_equal(F.concat(ours).numpy(), np.concatenate(wanted))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_layout_takes_every_element_type(dtype):
    """The elements arrive bit for bit."""
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype.numpy)
    t = gptrs.tensor(x)
    moved = {
        "stack": (F.stack([t, t]), np.stack([x, x])),
        "pad": (F.pad(t, ((1, 0), (0, 0))), np.concatenate([np.zeros_like(x[:1]), x])),
        "edge": (F.pad(t, ((1, 0), (0, 0)), "edge"), np.concatenate([x[:1], x])),
        "roll": (F.roll(t, 1, 1), np.roll(x, 1, 1)),
        "tril": (F.tril(t), np.where(np.tri(2, 3, dtype=bool), x, np.zeros_like(x))),
        "flip": (t[::-1, ::-2], x[::-1, ::-2]),
        "repeat": (F.repeat_interleave(t, 2, 0), np.repeat(x, 2, 0)),
    }
    for name, (ours, wanted) in moved.items():
        assert ours.dtype is dtype, name
        assert ours.numpy().tobytes() == wanted.tobytes(), name
