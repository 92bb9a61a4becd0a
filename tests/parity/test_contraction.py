"""`dot_general` against torch.einsum, and `iota` against torch.arange."""

from __future__ import annotations

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Iota
from gptrs_conformance.samples import sample
from parity.torch_arrays import assert_same_bits, to_torch, torch
from parity.torch_types import FLOATS, INTEGERS, torch_dtype

CASES = {
    "k,k->": (DotGeneral((0,), (0,)), (7,), (7,)),
    "mk,kn->mn": (DotGeneral((1,), (0,)), (3, 5), (5, 4)),
    "mk,nk->mn": (DotGeneral((1,), (1,)), (1, 64), (33, 64)),
    "km,kn->mn": (DotGeneral((0,), (0,)), (5, 3), (5, 4)),
    "bmk,bkn->bmn": (DotGeneral((2,), (1,), (0,), (0,)), (2, 3, 5), (2, 5, 4)),
    "kbmc,cnkb->bmn": (DotGeneral((0, 3), (2, 0), (1,), (3,)), (2, 3, 4, 5), (5, 6, 2, 3)),
    "abm,ban->abmn": (DotGeneral((), (), (0, 1), (1, 0)), (2, 3, 4), (3, 2, 5)),
    "m,n->mn": (DotGeneral((), ()), (3,), (4,)),
    ",->": (DotGeneral((), ()), (), ()),
    "mk,kn->mn empty k": (DotGeneral((1,), (0,)), (3, 0), (0, 4)),
    "mk,kn->mn empty m": (DotGeneral((1,), (0,)), (0, 5), (5, 4)),
}


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, dtypes.cf32, dtypes.cf64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_dot_general(reference: Backend, case: str, dtype: DType) -> None:
    op, left, right = CASES[case]
    x, y = sample(dtype, left), sample(dtype, right, seed=1)
    found = run_op(reference, op, x, y)
    equation = case.split(" ")[0]
    a, b = to_torch(x), to_torch(y)
    if dtype.is_integer:
        exact = torch.einsum(equation, a.long(), b.long()).to(torch_dtype(torch, dtype))
        assert_same_bits(found, exact)
        return
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = torch.einsum(equation, a.to(wide), b.to(wide)).numpy()
    rtol = {"bf16": 2**-7, "f16": 2**-10, "f32": 1e-5, "cf32": 1e-5}.get(dtype.name, 1e-12)
    kind = "c16" if dtype.is_complex else "f8"
    np.testing.assert_allclose(found.astype(kind), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((7,), 0), ((2, 3), 0), ((2, 3), 1)])
def test_iota(reference: Backend, shape: tuple[int, ...], axis: int, dtype: DType) -> None:
    steps = torch.arange(shape[axis], dtype=torch.float64).to(torch_dtype(torch, dtype))
    column = steps if axis == len(shape) - 1 else steps[:, None]
    assert_same_bits(run_op(reference, Iota(shape, axis, dtype)), column.expand(shape))
