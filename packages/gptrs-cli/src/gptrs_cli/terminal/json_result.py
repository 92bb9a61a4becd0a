"""Results as JSON: one object on one line, whose `schema` says what it is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from gptrs_runtime.results import Result


class Error(Result, frozen=True, tag="gptrs.error/1"):
    """Failure of any command; the exit code says the same more coarsely."""

    code: str
    message: str
    hint: str | None


def as_line(result: Result) -> str:
    """Return a result as a line of JSON; numbers that JSON lacks become "nan", "inf", "-inf"."""
    # Not by msgspec.json: it takes no lone surrogates, which names of files may have, and writes
    # NaN as null.
    record = msgspec.to_builtins(result)
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False) + "\n"


def print_result(result: Result) -> None:
    """Print a result on standard output, at once."""
    sys.stdout.write(as_line(result))
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
