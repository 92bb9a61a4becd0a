"""Writers of branches and loops, whose graphs read the values around them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from gptrs.api.programs import Op, Region, TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.indexing import counted
from gptrs_onnx.writing.instructions import region_results, writes
from gptrs_onnx.writing.reduction import scan, value_info

ops = op_modules.control_flow


@writes(ops.Cond)
def cond(
    w: GraphWriter, op: Op, predicate: Ref, *operands: Ref, regions: Sequence[Region]
) -> list[Ref]:
    """Write a branch; each way is a graph without inputs."""
    del op
    ways: list[onnx.GraphProto] = []
    for region in regions:
        with w.inner() as nodes:
            found = region_results(w, region, operands)
            outputs = [w.node("Identity", each) for each in found]
        ways.append(helper.make_graph(nodes, w.fresh("way"), [], list(map(value_info, outputs))))
    types = [each.type for each in regions[0].results]
    then, otherwise = ways
    return w.node_of("If", [predicate], types, then_branch=then, else_branch=otherwise)


@writes(ops.While)
def while_(w: GraphWriter, op: Op, *state: Ref, regions: Sequence[Region]) -> list[Ref]:
    """Write a loop; its condition is asked before it, and again at the end of each round."""
    del op
    condition, body = regions
    (first,) = region_results(w, condition, state)
    number = Ref(w.fresh("i"), TensorType(dtypes.si64, ()))
    again = Ref(w.fresh("go"), first.type)
    states = [Ref(w.fresh("s"), each.type) for each in state]
    with w.inner() as nodes:
        new = region_results(w, body, states)
        (more,) = region_results(w, condition, new)
        outputs = [w.node("Identity", each) for each in (more, *new)]
    inputs = [value_info(each) for each in (number, again, *states)]
    graph = helper.make_graph(nodes, w.fresh("body"), inputs, list(map(value_info, outputs)))
    return w.node_of("Loop", [None, first, *state], [each.type for each in state], body=graph)


@writes(ops.Scan)
def scan_(w: GraphWriter, op: ops.Scan, *operands: Ref, regions: Sequence[Region]) -> list[Ref]:
    """Write a loop over leading axes; one that scans nothing counts its steps."""
    (body,) = regions
    carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
    count = op.carry_count

    def step(*values: Ref) -> tuple[list[Ref], list[Ref]]:
        found = region_results(w, body, values[: count + len(scanned)])
        return found[:count], found[count:]

    slices = [(x, 0) for x in scanned]
    if not slices:
        slices = [(counted(w, op.steps([each.type for each in operands])), 0)]
    last, stacked = scan(w, carried, slices, step, op.reverse)
    return [*last, *stacked]
