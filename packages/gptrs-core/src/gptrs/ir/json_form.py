"""The JSON form of programs: the text form's content for tools that do not parse it.

`docs/ptir.schema.json` is its schema. Values have their names in the text form without `%`, types
are spelled alike, default attributes are omitted, and literals are base64:

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
from collections.abc import Sequence

from msgspec import Struct, field

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.builder import WrittenOp
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.literal_text import literal_from_json
from gptrs.ir.op import Signature
from gptrs.ir.ops.creation import Constant
from gptrs.ir.parser import MAX_SPLAT_BYTES
from gptrs.ir.printer import ValueNames
from gptrs.ir.program import (
    VERSION,
    Function,
    Instruction,
    Program,
    Region,
    Value,
    unknown_version,
    verify,
)
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.v04.dump import is_dump, translate_dump
from gptrs.ir.value_tree import Allowance, JsonNode
from gptrs.ir.versions import VERSIONS, Version
from gptrs.strict_json import parse_object

# Reads the JSON form of programs: each error names the path of the value that caused it.


MAX_NAME = 1024
"""Longest name of a function or value."""

_REGION = ("params", "instructions", "results")


class _Scope(Struct):
    """The region being read: its names and instructions so far."""

    names: dict[str, Value] = field(default_factory=dict[str, Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    def value(self, node: JsonNode) -> Value:
        """Return the value named by a string node."""
        name = node.string("the id of a value", MAX_NAME)
        if name not in self.names:
            raise node.error(f"value `%{name}` is not defined" if _is_name(name) else _BAD_ID)
        return self.names[name]

    def define(self, node: JsonNode, value: Value) -> Value:
        """Bind the name in a string node to `value`."""
        name = node.string("the id of a value", MAX_NAME)
        if not _is_name(name):
            raise node.error(_BAD_ID)
        if name in self.names:
            raise node.error(f"value `%{name}` is defined twice")
        self.names[name] = value
        return value


class _Written(Struct, frozen=True):
    """A JSON value written for an attribute."""

    node: JsonNode

    def read(self, kind: AttributeKind, result: TensorType) -> object:
        return kind.from_json(self.node)

    def error(self, message: str) -> ProgramError:
        return self.node.error(message)


class JsonReader:
    """Reads the functions of a program of one version."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._signatures: dict[str, Signature] = {}
        self._scope = _Scope()
        self._nesting = 0

    def program(self, functions: JsonNode) -> Program:
        """Return the program of the functions in a list; checks across functions come later."""
        return Program(tuple(self._function(node) for node in functions.items()))

    def _function(self, node: JsonNode) -> Function:
        fields = node.fields(("name", *_REGION))
        name = fields["name"].string("the name of a function", MAX_NAME)
        if not IDENTIFIER.fullmatch(name):
            raise fields["name"].error(
                "a name is letters, digits, `_` and `.`, with no digit first"
            )
        if name in self._signatures:
            raise fields["name"].error(f"function `@{name}` is defined twice")
        function = Function(name, self._region(fields))
        self._signatures[name] = function.body.signature
        return function

    def _region(self, fields: dict[str, JsonNode]) -> Region:
        """Return a region, which is isolated from the enclosing one."""
        outer, self._scope = self._scope, _Scope()
        params = tuple(self._param(node) for node in fields["params"].items())
        for node in fields["instructions"].items():
            self._instruction(node)
        results = tuple(self._operand(node) for node in fields["results"].items())
        region = Region(params, tuple(self._scope.instructions), results)
        self._scope = outer
        return region

    def _param(self, node: JsonNode) -> Value:
        fields = node.fields(("id", "type"))
        name = fields["id"].value
        kept = name if isinstance(name, str) and not name.isdigit() else None
        return self._scope.define(fields["id"], Value(fields["type"].type(), kept))

    def _instruction(self, node: JsonNode) -> None:
        fields = node.fields(("op", "operands", "results"), ("attributes", "regions"))
        name = fields["op"].string("the name of an op")
        written = WrittenOp(name, fields["op"], self._version.change(name))
        operands = tuple(self._operand(each) for each in fields["operands"].items())
        if "attributes" in fields:
            entries = fields["attributes"].entries()
            written.attributes = {key: (each, _Written(each)) for key, each in entries.items()}
        regions = written.upgraded(self._regions(node, fields, written.region_names))
        targets = [each.fields(("id", "type")) for each in fields["results"].items()]
        annotated = [(target["type"], target["type"].type()) for target in targets]
        if not targets:
            raise fields["results"].error("an instruction has at least one result")
        types = [operand.type for operand in operands]
        signatures = [region.signature for region in regions]
        op = written.resolve(annotated, types, signatures, self._signatures)
        results = tuple(
            self._scope.define(target["id"], Value(type_))
            for target, (_, type_) in zip(targets, annotated, strict=True)
        )
        self._scope.instructions.append(Instruction(op, operands, results, regions))

    def _regions(
        self, node: JsonNode, fields: dict[str, JsonNode], names: Sequence[str]
    ) -> tuple[Region, ...]:
        if not names and "regions" in fields:
            raise fields["regions"].error("an instruction with this op has no regions")
        if not names:
            return ()
        if "regions" not in fields:
            raise node.error(f"the key `regions` is missing, with {' and '.join(names)}")
        inner = fields["regions"].fields(names)
        if self._nesting == MAX_NESTING:
            raise fields["regions"].error(f"regions are nested deeper than {MAX_NESTING}")
        self._nesting += 1
        regions = tuple(self._region(inner[name].fields(_REGION)) for name in names)
        self._nesting -= 1
        return regions

    def _operand(self, node: JsonNode) -> Value:
        """Return a value by its id, or a literal: a `constant` in front of the instruction."""
        if not isinstance(node.value, dict):
            return self._scope.value(node)
        literal = literal_from_json(node)
        value = Value(literal.type)
        self._scope.instructions.append(Instruction(Constant(literal), (), (value,)))
        return value


_BAD_ID = "an id is all digits, or letters, digits, `_` and `.` with no digit first"


def _is_name(name: str) -> bool:
    return (name.isascii() and name.isdigit()) or IDENTIFIER.fullmatch(name) is not None


# Programs as JSON values, with the names that the text form gives them.


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


MAX_DEPTH = 4 * MAX_NESTING + 16
"""Deepest nesting of lists and objects: four for each region in a region."""


def print_json(program: Program, indent: int | None = None) -> str:
    """Return the JSON form of `program`, on one line or with `indent` spaces a level.

    The same program gives the same text. ProgramError if it reads a value before it is defined.
    """
    return json.dumps(program_to_json(program), indent=indent, allow_nan=False)


def parse_json(text: str | bytes) -> Program:
    """Return the program whose JSON form is `text`, checked by `verify`.

    Programs of ptir.v0.4 are upgraded, as are dumps of that version (`spec_version`), whose errors
    refer to the equivalent JSON form. ProgramError, with the path of the value as in
    `functions[0].instructions[3].attributes.axis`, for anything else: text that is not JSON or is
    nested or large beyond reason, unknown keys, ops and attributes, literals of the wrong length,
    types that differ from what the op infers.
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
