"""Cases of the ops that make a tensor from attributes alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Constant, Iota
from gptrs_conformance.cases.elementwise_choices import SHAPES, edges, storage
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import sample


@rows(Constant, dtypes=dtypes.ALL)
def constant(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Edges, every kind of shape, and one element repeated."""
    arrays = [("edges", edges(dtype))]
    arrays += [(f"shape {list(shape)}", sample(dtype, shape, 1)) for shape in SHAPES]
    arrays.append(("one element repeated", np.full((3, 4), sample(dtype, (), 2)[()], dtype.numpy)))
    for label, array in arrays:
        yield OpCase(Constant(Literal.of(array)), (), (storage(array),), label=label)


@rows(Iota, dtypes=(*dtypes.INTEGERS, *dtypes.FLOATS))
def iota(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Each axis, no elements, and the last index that the type holds exactly."""
    shapes = [((5,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 1, 4), 2), ((2, 0, 3), 2), ((0,), 0)]
    longest = 9 if dtype is dtypes.f8e5m2 else 8 if dtype.bits == 4 else 17
    for shape, axis in (*shapes, ((longest if dtype.bits < 16 else 200,), 0)):
        steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        expected = np.broadcast_to(steps, shape)
        if dtype.is_float:
            expected = expected.astype(np.float64)
        yield OpCase(Iota(shape, axis, dtype), (), (expected,), label=f"{list(shape)} by {axis}")
