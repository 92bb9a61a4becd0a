"""Writes `docs/json.schema.json` and the tables of `docs/json.md` from the Structs of the results.

python tools/json_results.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.inspect

import gptrs_cli
from gptrs_runtime.results import Result

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA, PAGE = DOCS / "json.schema.json", DOCS / "json.md"
MARK = "<!-- From here on the page is written by tools/json_results.py. -->\n"

Schema = dict[str, Any]


def _results() -> dict[str, type[Result]]:
    """Return all results of the command line by the names in their `schema`, in this order."""
    for module in pkgutil.walk_packages(gptrs_cli.__path__, "gptrs_cli."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                # `make test` installs neither; no result is defined in what needs them.
                if error.name not in ("torch", "transformers"):
                    raise
    found = {tag_of(each).removeprefix("gptrs.").partition("/")[0]: each
             for each in Result.__subclasses__()}  # fmt: skip
    return dict(sorted(found.items()))


def tag_of(result: type[Result]) -> str:
    """Return the `schema` of a result."""
    return str(result.__struct_config__.tag)


KINDS: Final = _results()


def schema(*, strict: bool = False) -> Schema:
    """The schema of everything that `--json` prints; `strict` allows no further keys."""
    _, found = msgspec.json.schema_components(
        KINDS.values(), schema_hook=_path, ref_template="#/$defs/{name}"
    )
    definitions: Schema = {result.__name__: found[result.__name__] for result in KINDS.values()}
    definitions |= dict(sorted(found.items()))
    classes = {each.__name__: each for each in _parts(KINDS.values())}
    for name, definition in definitions.items():
        if "description" in definition:  # msgspec < 0.23 keeps the indent of docstrings
            definition["description"] = inspect.cleandoc(definition["description"])
        if "properties" in definition:
            _describe(classes[name], definition)
            if strict:
                definition["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of JSON that gptrs prints",
        "description": "`schema` says which of these a line is.",
        "anyOf": [{"$ref": f"#/$defs/{result.__name__}"} for result in KINDS.values()],
        "$defs": definitions,
    }


def _path(_: type) -> Schema:
    """The schema of paths, the only values in results that msgspec does not know."""
    return {"type": "string"}


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


def _parts(results: Iterable[type]) -> set[type]:
    """Return the classes of results and of their parts, at any depth."""
    found: set[type] = set()
    left = [msgspec.inspect.type_info(each) for each in results]
    while left:
        info = left.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if info.cls in found:
                continue
            found.add(info.cls)
        left += [each for value in _values(info) for each in value]
    return found


def _values(info: msgspec.inspect.Type) -> Iterator[list[msgspec.inspect.Type]]:
    for name in info.__struct_fields__:
        value = getattr(info, name)
        listed = list(value) if isinstance(value, tuple | list) else [value]
        listed = [each.type if isinstance(each, msgspec.inspect.Field) else each for each in listed]
        yield [each for each in listed if isinstance(each, msgspec.inspect.Type)]


def _describe(kind: type, definition: Schema) -> None:
    """Add the strings below the keys of a class: those of its bases, too."""
    definition.pop("title", None)
    for key, value in definition["properties"].items():
        value.pop("default", None)  # all keys are printed but those that are UNSET
        _untyped(value)
        if key in _documented(kind):
            value["description"] = _documented(kind)[key]
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ()
    unset = {field.encode_name for field in fields if field.default is msgspec.UNSET}
    definition["required"] = [key for key in definition["properties"] if key not in unset]


def _untyped(value: Any) -> None:
    """Drop the type beside the alternatives of a `Number`, at any depth."""
    if isinstance(value, dict):
        if "anyOf" in value:
            value.pop("type", None)
        for each in value.values():
            _untyped(each)
    elif isinstance(value, list):
        for each in value:
            _untyped(each)


@cache
def _documented(kind: type) -> dict[str, str]:
    """Return the strings below the keys of a class by key, those of its bases, too."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    inherited = [_documented(base) for base in kind.__bases__ if "__annotations__" in vars(base)]
    return {k: t for told in inherited for k, t in told.items()} | dict(_strings_below(node))


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
        kinds = value.get("prefixItems", [value.get("items", {})])
        return f"list of {', '.join(dict.fromkeys(map(_type, kinds)))}"
    if value.get("type") == "object":
        more = value.get("additionalProperties")
        return f"object of {_type(more)}" if isinstance(more, dict) and more else "object"
    return value.get("type", "anything")


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page_text(), encoding="utf-8")
