"""Fusion of `grouped_linear`, of any number of rows: the experts of a mixture."""

from __future__ import annotations

from gptrs.functionals.grouped_linear import grouped_linear
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.indexing import Take
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.rewrite.template import Definer, Made
from gptrs_backend_numba.fusion.linear import take_narrow_weights
from gptrs_backend_numba.fusion.needed_patterns import GatedFusion
from gptrs_backend_numba.fusion.read_calls import ReadCall, ReadPattern
from gptrs_backend_numba.lowering.grouped_linear import GROUPED_LINEAR, fits_grouped


def _read(made: Made, definition: Definer) -> ReadCall | None:
    """Read the loop over rows: it carries the matrices, and scans rows and groups."""
    del definition
    if not isinstance(made.op, Scan) or made.op.carry_count != 1 or len(made.operands) != 3:
        return None
    weight, x, groups = made.operands
    if (weight.type.rank, x.type.rank, groups.type.rank) != (3, 2, 1):
        return None
    return ReadCall({"x": x, "weight": weight, "groups": groups}, {})


def _replacement(call: FoundCall) -> CustomCall | None:
    if not fits_grouped([bound.type for bound in call.operands.values()]):
        return None
    return CustomCall(GROUPED_LINEAR, (call.result.type,), Dictionary())


FUSE_GROUPED_LINEAR: tuple[Pass, ...] = (
    GatedFusion(
        "numba-fuse-grouped-linear",
        ReadPattern(grouped_linear, _read),
        _replacement,
        frozenset((Scan, Take, DotGeneral)),
    ),
    RegionPass(
        "numba-fuse-narrow-groups",
        lambda region: take_narrow_weights(region, GROUPED_LINEAR),
    ),
)
