"""Conformance rows of `composite`: a kind that no backend claims.

The backend sees such a program as the product gives it one: with the composite inlined.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.attributes import FunctionName
from gptrs.ir.builder import Builder
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.ops.elementwise import Add, Mul
from gptrs.ir.program import Function
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.op_case import OpCase, rows

TYPE = TensorType(dtypes.f32, (2, 3))
KIND = "gptrs_conformance.sum_and_product.v1"


@rows(Composite, dtypes=[dtypes.i1])
def composite(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Two operands, two results, attributes that only a kernel would read."""
    x = rng.integers(-9, 9, size=(2, 3)).astype(np.float32)
    y = rng.integers(-9, 9, size=(2, 3)).astype(np.float32)
    builder = Builder()
    a, b = builder.param(TYPE), builder.param(TYPE)
    body = builder.region(builder.emit(Add(), a, b), builder.emit(Mul(), a, b))
    function = Function("sum_and_product", body)
    attrs = Dictionary.of(tile=(8, 8), fast=True)
    op = Composite(KIND, FunctionName(function.name), "a b", attrs)
    wide = x.astype("f8"), y.astype("f8")
    expected = (wide[0] + wide[1], wide[0] * wide[1])
    yield OpCase(op, (x, y), expected, label="decomposed", functions=(function,))
