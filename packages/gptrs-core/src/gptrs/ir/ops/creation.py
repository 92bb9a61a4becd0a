"""Ops that make a tensor from attributes only."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op, op
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import exceeds
from gptrs.ir.tensor_type import TensorType


@op("constant")
class Constant(Op):
    """The tensor `value`; in text a nested list, or `splat(x)` for one element repeated."""

    value: Literal

    def infer(self) -> TensorType:
        """Return the type of the literal."""
        return self.value.type


@op("iota")
class Iota(Op):
    """Each element is its own index along `axis`, 0 .. shape[axis] - 1, as `dtype`.

    `dtype` is an integer or a float type that represents every index exactly.
    """

    shape: Shape
    axis: int
    dtype: DType

    def infer(self) -> TensorType:
        """`dtype[shape]`."""
        result = TensorType(self.dtype, self.shape)
        self.require_kind(result, "signed", "unsigned", "float")
        if not 0 <= self.axis < result.rank:
            raise self.error(f"has no axis {self.axis}", result)
        limit = count_of_exact_indices(self.dtype)
        if exceeds(self.shape[self.axis], limit):
            raise self.error(f"counts past {limit - 1}, the last index exact in the type", result)
        return result


_FLOAT_PRECISION = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
"""Bits of the significand, the implicit one included."""


def count_of_exact_indices(dtype: DType) -> int:
    """Return n such that the type represents the indices 0 .. n - 1 exactly."""
    if dtype.is_float:
        return 2 ** _FLOAT_PRECISION[dtype.name] + 1
    return 2 ** (dtype.bits - (dtype.kind == "signed"))
