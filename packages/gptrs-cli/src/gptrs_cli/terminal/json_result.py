"""Results as JSON: one object on one line, whose `schema` says what it is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, cast

import msgspec
import typer
from msgspec import Struct, field

from gptrs_cli.terminal.streams import has_colors, printable
from gptrs_runtime.results import Result, plain


class Error(Result, frozen=True, tag="gptrs.error/1"):
    """Failure of any command; the exit code says the same more coarsely."""

    code: str
    message: str
    hint: str | None


def as_line(result: Result) -> str:
    """Return a result as a line of JSON; numbers that JSON lacks become "nan", "inf", "-inf"."""
    # Not by msgspec.json: it takes no lone surrogates, which names of files may have, and writes
    # NaN as null.
    record = msgspec.to_builtins(result, enc_hook=plain)
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


# Lines that say what `gptrs doctor` and `gptrs plugins check` found, coloured by state.


BROKEN_CODE = 4
"""The exit code where something is broken."""
_MOST_LINES = 3
"""Of plugins of one kind that are fine."""
_MARKS = {"ok": ("✓", "+", "green"), "note": ("!", "!", "yellow"), "broken": ("✗", "x", "red")}
"""For each state: the mark, the same in ASCII, its colour."""


class Check(Struct, frozen=True):
    """A line of a report: what was looked at, what was found, what to do; `data` for machines."""

    name: str
    state: Literal["ok", "note", "broken"]
    detail: str
    hint: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


def shortened(checks: Iterable[Check]) -> Iterator[Check]:
    """Yield checks to be read: of many plugins of one kind that are fine only their names."""
    for (name, state), group in groupby(checks, lambda check: (check.name, check.state)):
        alike = list(group)
        names = [str(check.data["name"]) for check in alike if "kind" in check.data]
        if state == "ok" and len(names) == len(alike) > _MOST_LINES:
            yield Check(name, state, f"{len(names)} are available: {', '.join(names)}")
        else:
            yield from alike


def print_check(check: Check) -> None:
    """Print a check on standard output at once, its hint below it."""
    mark, ascii_mark, color = _MARKS[check.state]
    mark = mark if "utf" in (sys.stdout.encoding or "").lower() else ascii_mark
    mark = typer.style(mark, fg=color) if has_colors(sys.stdout) else mark
    print(f"{mark} {check.name:<14} {printable(check.detail)}", flush=True)
    if check.hint:
        print(f"  {'':<14} {printable(check.hint)}", flush=True)
