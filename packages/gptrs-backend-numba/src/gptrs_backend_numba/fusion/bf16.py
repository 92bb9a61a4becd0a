"""Fusion of linear layers whose operands are rounded to bf16, for the precision `bf16`."""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Region
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.passes.arithmetic_folding import PRODUCT_ROUNDING
from gptrs.optimizer.rewrite.rewriter import Rewriter
from gptrs_backend_numba.lowering.linear import BF16_LINEAR, linear_target


def round_layers(region: Region) -> Region:
    """Return the region whose linear layers of f32 round both operands."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        op = node.op
        if isinstance(op, CustomCall) and op.target == linear_target(dtypes.f32):
            made = rewriter.insert(replace(op, target=BF16_LINEAR), node.operands, node)
            rewriter.replace(node.results[0], made.results[0])
            rewriter.erase(node)
    return rewriter.region()


ROUND_TO_BF16: tuple[Pass, ...] = (
    RegionPass("numba-round-linear", round_layers),
    PRODUCT_ROUNDING,
)
"""After linear layers are found; what is none is rounded by instructions of its own."""
