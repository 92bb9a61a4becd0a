"""Results as JSON: one object on one line; its `schema` names the kind of result."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, cast

import msgspec
import typer
from msgspec import Struct, field

from gptrs_cli.terminal.streams import has_colors, is_terminal, printable
from gptrs_runtime.results import Result, plain


class Error(Result, frozen=True, tag="gptrs.error/1"):
    """The failure of a command, in more detail than the exit code."""

    code: str
    message: str
    hint: str | None


def as_line(result: Result) -> str:
    """Return a result as a line of JSON; numbers that JSON lacks become "nan", "inf", "-inf"."""
    # Not msgspec.json: it refuses lone surrogates, which file names may have, and writes NaN as
    # null.
    record = msgspec.to_builtins(result, enc_hook=plain)
    try:
        # Tried first: walking every number of a large result takes longer than writing it, and few
        # have NaN.
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False) + "\n"


def print_result(result: Result) -> None:
    """Print a result on standard output and flush it."""
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


# Lines of findings for `gptrs doctor` and `gptrs plugins check`, coloured by state.


BROKEN_CODE = 4
"""The exit code if something is broken."""
_MOST_LINES = 3
"""Checks that are joined in one line if all are fine: plugins of a kind."""
_MOST_NAMES = 40
"""Names of plugins in such a line."""
_MARGIN = 17
"""Columns before the finding of a check."""
_MARKS = {"ok": ("✓", "+", "green"), "note": ("!", "!", "yellow"), "broken": ("✗", "x", "red")}
"""By state: mark, mark in ASCII, colour."""


class Check(Struct, frozen=True):
    """A line of a report: the subject, the finding, a hint; `data` is for programs."""

    name: str
    state: Literal["ok", "note", "broken"]
    detail: str
    hint: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


def shortened(checks: Iterable[Check]) -> Iterator[Check]:
    """Yield checks for reading: plugins of one kind that are fine share a line."""
    for (name, state), group in groupby(checks, lambda check: (check.name, check.state)):
        alike = list(group)
        names = [str(check.data["name"]) for check in alike if "kind" in check.data]
        if state == "ok" and len(names) == len(alike) > _MOST_LINES:
            shown = "" if len(names) > _MOST_NAMES else f": {', '.join(names)}"
            hint = None if shown else "`gptrs list plugins` shows them"
            yield Check(name, state, f"{len(names)} are available{shown}", hint)
        else:
            yield from alike


def print_check(check: Check) -> None:
    """Print a check on standard output, with its hint below, and flush it."""
    mark, ascii_mark, color = _MARKS[check.state]
    mark = mark if "utf" in (sys.stdout.encoding or "").lower() else ascii_mark
    mark = typer.style(mark, fg=color) if has_colors(sys.stdout) else mark
    detail, *below = _wrapped(check.detail)
    print(f"{mark} {check.name:<14} {detail}", flush=True)
    for line in (*below, *(_wrapped(check.hint) if check.hint else ())):
        print(f"{'':<{_MARGIN}}{line}", flush=True)


def _wrapped(text: str) -> list[str]:
    """Return printable `text` in lines: on a terminal, whole words that fit beside the margin."""
    text = printable(text)
    if not is_terminal(sys.stdout):
        return [text]
    room = max(shutil.get_terminal_size().columns - _MARGIN, 1)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
