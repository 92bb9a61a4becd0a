"""Writes `docs/ptir.schema.json`, the JSON Schema of programs, from the classes of the ops.

python tools/ptir_schema.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gptrs.ir import OPS, VERSION, Op, dtypes
from gptrs.ir.json_form import MAX_NAME
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.value_tree import MAX_STRING

PATH = Path(__file__).parents[1] / "docs" / "ptir.schema.json"

Schema = dict[str, Any]


def schema() -> Schema:
    """The schema: what every program has, and under `$defs` its parts and each op."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A PTIR program in JSON, {VERSION}",
        "description": "What the schema cannot say, such as the type that an op infers, is checked "
        "when a program is read. A literal in the place of an operand is allowed and stands for a "
        "`constant`.",
        **record(
            {"version": {"const": VERSION}, "functions": {**array("function"), "minItems": 1}}
        ),
        "$defs": {**parts(), **{f"op.{name}": instruction(OPS[name]) for name in sorted(OPS)}},
    }


def parts() -> Schema:
    """The definitions that do not depend on the ops."""
    name = {"type": "string", "maxLength": MAX_NAME, "pattern": f"^{IDENTIFIER.pattern}$"}
    base64 = {"type": "string", "contentEncoding": "base64"}
    dtype = "|".join(str(dtype) for dtype in dtypes.ALL)
    region = {
        "params": array("value"),
        "instructions": array("instruction"),
        "results": array("operand"),
    }
    return {
        "function": record({"name": name, **region}),
        "region": record(region),
        "value": record({"id": ref("id"), "type": ref("type")}),
        "id": {
            "description": "The name of a value in its region: digits where it has none.",
            "type": "string",
            "maxLength": MAX_NAME,
            "pattern": f"^([0-9]+|{IDENTIFIER.pattern})$",
        },
        "operand": {"anyOf": [ref("id"), ref("literal")]},
        "dtype": {"enum": [str(dtype) for dtype in dtypes.ALL]},
        "type": {
            "description": "A type as in the text form, `f32[2, 3]`.",
            "type": "string",
            "maxLength": MAX_STRING,
            "pattern": rf"^({dtype})\[[^\[\]]*\]$",
        },
        "literal": {
            "description": "The elements in row-major order, little-endian, 4-bit integers in a "
            "byte each: all of them, or the one that is repeated.",
            "oneOf": [
                record({"type": ref("type"), "data": base64}),
                record({"type": ref("type"), "splat": base64}),
            ],
        },
        "instruction": {"oneOf": [ref(f"op.{name}") for name in sorted(OPS)]},
    }


def instruction(op: type[Op]) -> Schema:
    """An instruction with this op."""
    operands = {**array("operand"), "minItems": len(op.operand_names)}
    if not op.variadic:
        operands["maxItems"] = len(op.operand_names)
    properties = {
        "op": {"const": op.name},
        "operands": operands,
        "results": {**array("value"), "minItems": 1},
    }
    optional: Schema = {}
    needed = [name for name in op.attribute_types if name not in op.attribute_defaults]
    attributes = record({name: attribute(op, name) for name in op.attribute_types}, needed)
    (properties if needed else optional)["attributes"] = attributes
    if op.region_names:
        properties["regions"] = record({name: ref("region") for name in op.region_names})
    required = list(properties)
    return record({**properties, **optional}, required)


def attribute(op: type[Op], name: str) -> Schema:
    """An attribute with its default, if it has one."""
    kind, defaults = op.attribute_kinds[name], op.attribute_defaults
    if name not in defaults:
        return kind.schema
    return {**kind.schema, "default": kind.to_json(defaults[name])}


def record(properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these keys and no others."""
    needed = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        **({"required": needed} if needed else {}),
        "additionalProperties": False,
    }


def array(name: str) -> Schema:
    """A list of one of the definitions."""
    return {"type": "array", "items": ref(name)}


def ref(name: str) -> Schema:
    """One of the definitions."""
    return {"$ref": f"#/$defs/{name}"}


def text() -> str:
    """The schema as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(f"wrote {PATH}")
