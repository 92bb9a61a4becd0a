"""Ops that put elements in order.

Values are ordered with false below true, -0.0 equal to 0.0, and NaN of any sign equal to itself and
greater than all else.
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.ops.reduction import require_index_dtype
from gptrs.ir.tensor_type import TensorType


@op("sort")
class Sort(Op):
    """Sort the operands along `axis` by ascending `x`, the first of them.

    Each line of `x` along `axis` is sorted, NaN last, and the corresponding lines of the other
    operands are permuted alike: with `p` the permutation of a line, `out[.., i, ..] = operand[..,
    p[i], ..]`, for as many results as operands. With `descending` the order is the opposite, NaN
    first. Equal elements, including -0.0 and 0.0, keep their order, with `descending` too; if not
    `stable`, their order is unspecified. Bits are kept.

    `x` is of reals or `i1`, the other operands of any element type, and all have one shape; empty
    dims are legal. Refused: other shapes, complex `x`, and an `axis` that the operands do not have,
    which rank 0 always is.
    """

    axis: int
    descending: bool = False
    stable: bool = True

    def infer(self, x: TensorType, *more: TensorType) -> tuple[TensorType, ...]:
        """Return the types of the operands."""
        self.require_kind(x, "bool", "signed", "unsigned", "float")
        if any(other.shape != x.shape for other in more):
            raise self.error("needs operands of one shape", x, *more)
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x, *more)
        return (x, *more)


@op("top_k")
class TopK(Op):
    """The `k` largest elements along `axis`, largest first, and their indices along it.

    In `values` and `indices`, `axis` has size `k`. Among equal elements, including -0.0 and 0.0,
    the smaller index comes first, and NaN counts as greatest. If not `largest`, the `k` least,
    least first: ties go to the smaller index again, and NaN comes last. That is the beginning of a
    stable `sort`, in `values` bit for bit.

    `x` is of reals or `i1`; `indices_dtype` is si32 or si64. `k` may be 0 or the whole axis.
    Refused: complex `x`, an `axis` that it does not have, a `k` outside [0, x.shape[axis]], and an
    axis of more than 2^31 elements with si32.
    """

    k: int
    axis: int = 0
    largest: bool = True
    indices_dtype: DType = dtypes.si32

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        """`k` values, and as many indices in `indices_dtype`."""
        self.require_kind(x, "bool", "signed", "unsigned", "float")
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        if not 0 <= self.k <= x.shape[self.axis]:
            raise self.error(f"cannot give {self.k} elements of axis {self.axis}", x)
        require_index_dtype(self, self.indices_dtype, x, self.axis)
        values = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return values, values.with_dtype(self.indices_dtype)
