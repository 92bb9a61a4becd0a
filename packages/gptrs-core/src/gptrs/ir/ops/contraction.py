"""Ops that multiply and sum over shared axes of two tensors."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.ops.reduction import require_kindred
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType


@op("dot_general")
class DotGeneral(Op):
    """Sum of products over the contracted axes, for every batch and free position.

    `out[b.., m.., n..] = sum_k.. lhs[b.., m.., k..] * rhs[b.., n.., k..]`, where the axes lists
    pair up by position: `batch_lhs[i]` with `batch_rhs[i]`, `contract_lhs[i]` with
    `contract_rhs[i]`. The result dims are batch (in list order), lhs free, rhs free (in operand
    order). Products are summed in `accum_dtype` (default: f32 for 8- and 16-bit floats, else the
    operand type; integers wrap) and converted as by `cast` to `out_dtype` (default: the operand
    type). A contraction over no elements gives 0.
    """

    contract_lhs: tuple[int, ...]
    contract_rhs: tuple[int, ...]
    batch_lhs: tuple[int, ...] = ()
    batch_rhs: tuple[int, ...] = ()
    accum_dtype: DType | None = None
    out_dtype: DType | None = None

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        """Batch, lhs free and rhs free dims in `out_dtype`."""
        self.require_same_dtype(lhs, rhs)
        self.require_kind(lhs, "signed", "unsigned", "float", "complex")
        for side, x, axes in (
            ("lhs", lhs, self.batch_lhs + self.contract_lhs),
            ("rhs", rhs, self.batch_rhs + self.contract_rhs),
        ):
            if any(not 0 <= axis < x.rank for axis in axes) or len(set(axes)) != len(axes):
                reason = f"needs distinct axes in [0, {x.rank}) for {side}, got {list(axes)}"
                raise self.error(reason, lhs, rhs)
        self._require_paired("batch", self.batch_lhs, self.batch_rhs, lhs, rhs)
        self._require_paired("contract", self.contract_lhs, self.contract_rhs, lhs, rhs)
        require_kindred(self, lhs, self.accum_dtype, self.out_dtype)
        batch = tuple(lhs.shape[axis] for axis in self.batch_lhs)
        free_lhs = tuple(lhs.shape[axis] for axis in self.free_lhs(lhs))
        free_rhs = tuple(rhs.shape[axis] for axis in self.free_rhs(rhs))
        return TensorType(self.out_dtype or lhs.dtype, batch + free_lhs + free_rhs)

    def free_lhs(self, lhs: TensorType) -> Shape:
        """Axes of lhs that are neither batch nor contracted, ascending."""
        return _others(lhs.rank, self.batch_lhs + self.contract_lhs)

    def free_rhs(self, rhs: TensorType) -> Shape:
        """Axes of rhs that are neither batch nor contracted, ascending."""
        return _others(rhs.rank, self.batch_rhs + self.contract_rhs)

    def accumulator(self, lhs: TensorType) -> DType:
        """Return the type in which products are summed for operands of the type of `lhs`."""
        return self.accum_dtype or lhs.dtype.accumulator

    def _require_paired(
        self, what: str, left: Shape, right: Shape, lhs: TensorType, rhs: TensorType
    ) -> None:
        if len(left) != len(right):
            reason = f"needs as many {what}_lhs as {what}_rhs axes, got {list(left)}, {list(right)}"
            raise self.error(reason, lhs, rhs)
        for a, b in zip(left, right, strict=True):
            if lhs.shape[a] != rhs.shape[b]:
                reason = f"pairs {what} axis {a} of size {lhs.shape[a]} with {b} of {rhs.shape[b]}"
                raise self.error(reason, lhs, rhs)


def _others(rank: int, taken: Shape) -> Shape:
    return tuple(axis for axis in range(rank) if axis not in taken)
