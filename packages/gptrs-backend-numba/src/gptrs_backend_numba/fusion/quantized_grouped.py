"""Fusion of the products of rows with quantized matrices of their own choice."""

from __future__ import annotations

from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Region, Value
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.fusion.quantized import QuantizedWeight, find_weight, layer_attributes
from gptrs_backend_numba.lowering.quantized_grouped import QUANTIZED_GROUPED, fits

_SCANNED = 2
"""Rows and their groups are scanned; parts of all matrices are carried."""


def fuse_grouped(region: Region) -> Region:
    """Return the region whose loops over rows, each with a matrix to decode, are one call."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, Scan) and len(node.operands) == node.op.carry_count + _SCANNED:
            _fuse(node, node.op, rewriter)
    return rewriter.region()


def _fuse(node: InstructionNode, scan: Scan, rewriter: Rewriter) -> None:
    count = scan.carry_count
    (body,) = node.regions
    if scan.reverse or any(map(rewriter.used, node.results[:count])):
        return
    weight = _decoded(body, count)
    if weight is None:
        return
    taken = [_taken(value, body, count) for value in weight.values]
    parts = [node.operands[place] for place in taken if place is not None]
    x, groups = node.operands[count:]
    (result,) = node.results[count:]
    attributes = layer_attributes(weight, activation="none", bias=False, residual=False)
    call = CustomCall(QUANTIZED_GROUPED, (result.type,), attributes)
    operands = [x, *parts, groups]
    if len(parts) < len(taken) or not fits(call, [operand.type for operand in operands]):
        return
    made = rewriter.insert(call, operands, node)
    rewriter.replace(result, made.results[0])
    rewriter.erase_dead(node)


def _decoded(body: Region, count: int) -> QuantizedWeight | None:
    """Return the weight that the body multiplies its row with; None if it does anything else."""
    inner = Rewriter(body)
    if len(body.results) != count + 1 or body.results[:count] != body.params[:count]:
        return None
    product = inner.definition(body.results[count])
    if product is None or not isinstance(product.op, DotGeneral):
        return None
    op, (matrix, row) = product.op, product.operands
    axes = (op.batch_lhs, op.batch_rhs, op.contract_lhs, op.contract_rhs)
    if axes != ((), (), (1,), (0,)) or row is not body.params[count]:
        return None
    return find_weight(matrix, inner)


def _taken(value: Value, body: Region, count: int) -> int | None:
    """Return the number of the carried tensor whose part of the row's group `value` is."""
    made = next((each for each in body.instructions if value in each.results), None)
    if made is None or not isinstance(made.op, Take):
        return None
    stack, group = made.operands
    carried = body.params[:count]
    if group is not body.params[count + 1] or stack not in carried:
        return None
    return carried.index(stack)


FUSE_QUANTIZED_GROUPED: tuple[Pass, ...] = (
    RegionPass("numba-fuse-quantized-grouped", fuse_grouped),
)
"""Before other passes look into loops."""
