"""Ops that exist for tests only: what PTIR says of several results, before it has such an op."""

from __future__ import annotations

from gptrs.ir import OPS, Op, TensorType
from gptrs.ir.op import op


@op("test_sum_and_difference")
class SumAndDifference(Op):
    """`a + b` and `a - b`."""

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, TensorType]:
        self.require_same_type(a, b)
        return a, b


@op("test_swap")
class Swap(Op):
    """`b` and `a`."""

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, TensorType]:
        return b, a


# Other tests go through every op that there is.
ALL = {cls.name: OPS.pop(cls.name) for cls in (SumAndDifference, Swap)}
