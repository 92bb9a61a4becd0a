"""What commands print as JSON, checked against the schema of its kind: no key more, none less."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

import json_results

_NAMES = {json_results.tag_of(result): result.__name__ for result in json_results.KINDS.values()}


def checked(record: Any) -> Any:
    """Return the record; ValidationError unless it is what its `schema` says."""
    _validator(_NAMES[record["schema"]]).validate(record)
    return record


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    definitions = _strict()["$defs"]
    return jsonschema.Draft202012Validator({"$defs": definitions, "$ref": f"#/$defs/{name}"})


@functools.cache
def _strict() -> dict[str, Any]:
    return json_results.schema(strict=True)
