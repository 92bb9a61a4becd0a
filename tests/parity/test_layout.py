"""Ops that move elements agree with torch bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture import primitives as P
from gptrs.ir import dtypes
from parity.torch_arrays import (
    NARROW,
    TORCH,
    assert_same_bits,
    computed,
    edge_values,
    to_torch,
    torch,
)

CASES = {
    "reshape": ((2, 3, 4), lambda x: P.reshape(x, (4, -1)), lambda x: x.reshape(4, -1)),
    "reshape to rank 0": ((1, 1), lambda x: P.reshape(x, ()), lambda x: x.reshape(())),
    "reshape of nothing": ((0, 3), lambda x: P.reshape(x, (3, 0)), lambda x: x.reshape(3, 0)),
    "transpose": ((2, 3, 4), lambda x: P.transpose(x, (2, 0, -2)), lambda x: x.permute(2, 0, -2)),
    "transpose of rank 0": ((), lambda x: P.transpose(x, ()), lambda x: x.permute(())),
    "broadcast": ((3, 1), lambda x: P.broadcast_to(x, (2, 3, 5)), lambda x: x.expand(2, 3, 5)),
    "broadcast of rank 0": ((), lambda x: P.broadcast_to(x, (3, 0)), lambda x: x.expand(3, 0)),
    "slice": (
        (5, 7),
        lambda x: P.slice(x, (1, 0), (2, 3), (2, 3)),
        lambda x: x[1:5:2, ::3],
    ),
    "narrow": ((5, 7), lambda x: P.slice(x, (2, 0), (3, 7)), lambda x: x.narrow(0, 2, 3)),
    "narrow to nothing": ((5,), lambda x: P.slice(x, (5,), (0,)), lambda x: x.narrow(0, 5, 0)),
    "concat": (
        (2, 3),
        lambda x: P.concat([x, x, x], -1),
        lambda x: torch.cat([x, x, x], -1),
    ),
    "pad": (
        (2, 3),
        lambda x: P.pad(x, (1, 0), (0, 2)),
        lambda x: torch.nn.functional.pad(x, (0, 2, 1, 0)),
    ),
    "pad with a value": (
        (2, 3),
        lambda x: P.pad(x, (1, 3), (2, 0), value=1),
        lambda x: torch.nn.functional.pad(x, (3, 0, 1, 2), value=1),
    ),
    "pad that trims": (
        (4, 5),
        lambda x: P.pad(x, (-1, 2), (1, -3), value=1),
        lambda x: torch.nn.functional.pad(x, (2, -3, -1, 1), value=1),
    ),
    "pad of nothing": (
        (0, 2),
        lambda x: P.pad(x, (2, 0), (1, -2)),
        lambda x: torch.nn.functional.pad(x, (0, -2, 2, 1)),
    ),
    "tile": ((2, 3), lambda x: P.tile(x, (2, 3)), lambda x: x.repeat(2, 3)),
    "tile zero times": ((2, 3), lambda x: P.tile(x, (1, 0)), lambda x: x.repeat(1, 0)),
    "tile of rank 0": ((), lambda x: P.tile(x, ()), lambda x: torch.tile(x, ())),
    "reverse": ((2, 3, 4), lambda x: P.reverse(x, (0, -1)), lambda x: x.flip(0, -1)),
    "reverse no axis": ((3,), lambda x: P.reverse(x, ()), lambda x: x.flip(())),
    "reverse nothing": ((0, 3), lambda x: P.reverse(x, (0,)), lambda x: x.flip(0)),
}


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_bits(reference, name, dtype):
    if dtype in NARROW and name.startswith("reverse"):
        pytest.skip("torch does not flip floats of 8 bits")
    shape, ours, theirs = CASES[name]
    x = edge_values(dtype, shape)
    (found,) = computed(reference, ours, x)
    assert_same_bits(found, theirs(to_torch(x)))


@pytest.mark.parametrize("interior", [(1, 0), (2, 3)])
@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (0, 3)])
def test_interior_padding_is_the_transposed_strided_slice(reference, shape, interior):
    """torch spreads elements only as the gradient of reading every n-th."""
    x = edge_values(dtypes.f32, shape)
    spread = [max((dim - 1) * (n + 1) + 1, 0) for dim, n in zip(shape, interior, strict=True)]
    whole = torch.zeros(spread, requires_grad=True)
    strided = whole[tuple(slice(None, None, n + 1) for n in interior)]
    (expected,) = torch.autograd.grad(strided, whole, to_torch(x))
    (found,) = computed(reference, lambda t: P.pad(t, (0, 0), (0, 0), interior), x)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_padding_value(reference, value):
    x = edge_values(dtypes.f32, (2,))
    (found,) = computed(reference, lambda t: P.pad(t, (1,), (1,), value=value), x)
    expected = torch.nn.functional.pad(to_torch(x), (1, 1), value=value)
    assert_same_bits(found, expected)
