"""Writes `docs/json.schema.json` and the tables of `docs/json.md` from the types of the results.

python tools/json_results.py
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from gptrs_cli.json_types.kinds import KINDS
from gptrs_cli.terminal.json_result import schema_name

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA, PAGE = DOCS / "json.schema.json", DOCS / "json.md"
MARK = "<!-- From here on the page is written by tools/json_results.py. -->\n"

Schema = dict[str, Any]


def schema(*, strict: bool = False) -> Schema:
    """The schema of everything that `--json` prints; `strict` allows no further keys."""
    results = TypedDict("results", KINDS)  # pyright: ignore
    found = TypeAdapter(results).json_schema()
    definitions: Schema = found["$defs"]
    for name, definition in definitions.items():
        if "properties" in definition:
            _describe(name, definition)
            if strict:
                definition["additionalProperties"] = False
    for kind, result in KINDS.items():
        definition = definitions[result.__name__]
        named = {"schema": {"const": schema_name(kind)}}
        definition["properties"] = named | definition["properties"]
        definition["required"] = ["schema", *definition.get("required", ())]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of JSON that gptrs prints",
        "description": "`schema` says which of these a line is.",
        "anyOf": [{"$ref": f"#/$defs/{result.__name__}"} for result in KINDS.values()],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The content of the schema file."""
    return json.dumps(schema(), indent=1) + "\n"


def page_text() -> str:
    """The content of the page: what stands before the mark is kept."""
    kept, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    definitions = schema()["$defs"]
    shown = {result.__name__ for result in KINDS.values()}
    results = [_section(f"`{kind}`", definitions[r.__name__]) for kind, r in KINDS.items()]
    parts = [_section(name, part) for name, part in definitions.items()
             if name not in shown and "properties" in part]  # fmt: skip
    body = "\n".join([*results, "## Parts of results\n", *parts])
    return f"{kept}{MARK}\n## Results\n\n{body}"


def _describe(name: str, definition: Schema) -> None:
    """Add the strings below the keys of a class: those of its bases, too."""
    definition.pop("title", None)
    for key, value in definition["properties"].items():
        value.pop("title", None)
        if key in _documented().get(name, {}):
            value["description"] = _documented()[name][key]


def _documented() -> dict[str, dict[str, str]]:
    """The strings below keys, by class and key."""
    if not _DOCUMENTED:
        for module in {sys.modules[result.__module__] for result in KINDS.values()}:
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.ClassDef):
                    inherited = [_DOCUMENTED.get(b.id, {}) for b in node.bases
                                 if isinstance(b, ast.Name)]  # fmt: skip
                    own = {key: text for key, text in _strings_below(node)}
                    _DOCUMENTED[node.name] = {k: t for i in inherited for k, t in i.items()} | own
    return _DOCUMENTED


_DOCUMENTED: dict[str, dict[str, str]] = {}


def _strings_below(node: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (key.target.id, " ".join(below.value.value.split()))
        for key, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ]  # fmt: skip


def _section(title: str, definition: Schema) -> str:
    about = " ".join(textwrap.dedent(definition.get("description", "")).split())
    rows = [
        f"| `{key}`{'' if key in definition['required'] else ' (perhaps)'} | {_type(value)} |"
        f" {value.get('description', '')} |"
        for key, value in definition["properties"].items()
        if key != "schema"
    ]
    return "\n".join(
        [f"### {title}", "", about, "", "| key | value | |", "|---|---|---|", *rows, ""]
    )


def _type(value: Schema) -> str:
    """A type in words, as a cell of a table."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2]
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(each) for each in value["anyOf"]))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if value.get("type") == "object":
        more = value.get("additionalProperties")
        return f"object of {_type(more)}" if isinstance(more, dict) and more else "object"
    return value.get("type", "anything")


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page_text(), encoding="utf-8")
