"""Programs as JSON values, with the names that the text form gives them."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir.program import VERSION, Function, Instruction, Program, Region, Value
from gptrs.ir.value_names import ValueNames

Json = dict[str, object]


def program_to_json(program: Program) -> Json:
    """Return the JSON form of `program` as dicts, lists and plain values."""
    return {
        "version": VERSION,
        "functions": [_function(function) for function in program.functions],
    }


def _function(function: Function) -> Json:
    names = ValueNames(f"`@{function.name}`")
    return {"name": function.name, **_region(function.body, names)}


def _region(region: Region, names: ValueNames) -> Json:
    return {
        "params": _typed(names.define_params(region.params), region.params),
        "instructions": [_instruction(each, names) for each in region.instructions],
        "results": names.of(region.results),
    }


def _instruction(instruction: Instruction, names: ValueNames) -> Json:
    op = instruction.op
    result: Json = {"op": op.name, "operands": names.of(instruction.operands)}
    attributes = {
        name: op.attribute_kinds[name].to_json(value) for name, value in op.attributes().items()
    }
    if attributes:
        result["attributes"] = attributes
    regions: Json = {}
    for name, region in zip(op.region_names, instruction.regions, strict=True):
        with names.inner_region():
            regions[name] = _region(region, names)
    if regions:
        result["regions"] = regions
    result["results"] = _typed(names.define_results(instruction.results), instruction.results)
    return result


def _typed(names: Sequence[str], values: Sequence[Value]) -> list[Json]:
    return [
        {"id": name, "type": str(value.type)} for name, value in zip(names, values, strict=True)
    ]
