"""Instructions written in order, by the writers of their ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.api import UnsupportedError
from gptrs.api.passes import FoundCall
from gptrs.api.programs import Instruction, Region, Value
from gptrs.ir.symbolic_dim import UnknownSizeError
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.known_calls import calls_in, written_call
from gptrs_onnx.writing.registry import WRITERS


def region_results(w: GraphWriter, region: Region, operands: Sequence[Ref]) -> list[Ref]:
    """Write all instructions of a region that its results need; return these."""
    outer = w.values
    w.values = dict(zip(region.params, operands, strict=True))
    try:
        calls = calls_in(region)
        needed = _needed(region, calls)
        for instruction in region.instructions:
            if needed.isdisjoint(instruction.results):
                continue
            call = calls.get(instruction.results[0])
            try:
                if call is not None:
                    w.values[call.result] = written_call(w, call)
                else:
                    _write(w, instruction)
            except UnknownSizeError as error:
                w.refuse(f"sizes are free, and it {error.question}")
        return [w.values[result] for result in region.results]
    finally:
        w.values = outer


def _needed(region: Region, calls: Mapping[Value, FoundCall]) -> set[Value]:
    """Return the values that the results need, and nothing that is only inside a known call."""
    needed = set(region.results)
    for instruction in reversed(region.instructions):
        if not needed.isdisjoint(instruction.results):
            call = calls.get(instruction.results[0])
            if call is None:
                needed.update(instruction.operands)
            else:
                needed.update(bound.value for bound in call.operands.values())
    return needed


def _write(w: GraphWriter, instruction: Instruction) -> None:
    op = instruction.op
    w.op = op.name
    writer = WRITERS.get(type(op))
    if writer is None:
        raise UnsupportedError(f"`{op.name}` cannot be written as ONNX: it has no such operator")
    operands = [w.values[each] for each in instruction.operands]
    regions = {"regions": instruction.regions} if instruction.regions else {}
    made = writer(w, op, *operands, **regions)
    results = made if isinstance(made, list) else [made]
    for value, ref in zip(instruction.results, results, strict=True):
        assert ref.type == value.type, f"{op.name}: {ref.type} for {value.type}"
        w.values[value] = ref
