"""Results as JSON: one object on one line, whose `schema` says what it is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import cast

VERSION = 1
"""Grows when a key is removed or gets another meaning; new keys may come at any time."""


def schema_name(kind: str) -> str:
    """Return the value of `schema` in results of a kind such as `generate`, `list.plugins`."""
    return f"gptrs.{kind}/{VERSION}"


def as_line(kind: str, fields: Mapping[str, object]) -> str:
    """Return a result as a line of JSON; numbers that JSON lacks become "nan", "inf", "-inf"."""
    record = {"schema": schema_name(kind), **fields}
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False) + "\n"


def print_result(kind: str, fields: Mapping[str, object]) -> None:
    """Print a result on standard output, at once."""
    sys.stdout.write(as_line(kind, fields))
    sys.stdout.flush()


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {name: _finite(field) for name, field in fields.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in cast("Sequence[object]", value)]
    return value
