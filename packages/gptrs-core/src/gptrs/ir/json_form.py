"""The JSON form of programs: the content of the text form for tools that read no text.

`docs/ptir.schema.json` is its schema. Values have the names of the text form, without `%`, types
are spelled as there, attributes at their default are left out, and literals are base64:

    {"version": "ptir.v0.5", "functions": [{
      "name": "main",
      "params": [{"id": "x", "type": "f32[2, 3]"}],
      "instructions": [
        {"op": "reduce", "operands": ["x"], "attributes": {"kind": "sum", "axes": [1]},
         "results": [{"id": "0", "type": "f32[2]"}]}],
      "results": ["0"]}]}

An instruction with regions has them under `regions`, by name, each with `params`, `instructions`
and `results`.
"""

from __future__ import annotations

import json

from gptrs.errors import ProgramError
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.json_node import Allowance, JsonNode
from gptrs.ir.json_reader import JsonReader
from gptrs.ir.json_writer import program_to_json
from gptrs.ir.parser import MAX_SPLAT_BYTES
from gptrs.ir.program import Program, unknown_version
from gptrs.ir.v04.dump import is_dump, translate_dump
from gptrs.ir.verifier import verify
from gptrs.ir.versions import VERSIONS
from gptrs.strict_json import parse_object

MAX_DEPTH = 4 * MAX_NESTING + 16
"""Deepest nesting of lists and objects: four for each region in a region."""


def print_json(program: Program, indent: int | None = None) -> str:
    """Return the JSON form of `program`, on one line or with `indent` spaces a level.

    The same program gives the same text. ProgramError if it reads a value before it is defined.
    """
    return json.dumps(program_to_json(program), indent=indent, allow_nan=False)


def parse_json(text: str | bytes) -> Program:
    """Return the program whose JSON form is `text`, checked by `verify`.

    Programs of ptir.v0.4 are upgraded, the dumps of that time (`spec_version`) included; in those,
    errors speak of the JSON form that they amount to. ProgramError, with the path of the value as
    in `functions[0].instructions[3].attributes.axis`, for anything else: text that is not JSON or
    is nested or large beyond reason, unknown keys, ops and attributes, literals of the wrong
    length, types that differ from what the op infers.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    value = parse_object(
        data,
        "the program",
        ProgramError,
        hint="see docs/ptir.schema.json for what a program in JSON is",
        max_depth=MAX_DEPTH,
    )
    node = JsonNode(value, "", Allowance(MAX_SPLAT_BYTES))
    if is_dump(value):
        node = JsonNode(translate_dump(node), "", Allowance(MAX_SPLAT_BYTES))
    fields = node.fields(("version", "functions"))
    name = fields["version"].string("a version")
    if name not in VERSIONS:
        raise fields["version"].error(unknown_version(name))
    node.allowance.dtype_names = VERSIONS[name].dtype_names
    program = JsonReader(VERSIONS[name]).program(fields["functions"])
    verify(program)
    return program
