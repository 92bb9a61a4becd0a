"""Lines that say what `gptrs doctor` and `gptrs plugins check` found, coloured by state."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Literal

import typer
from msgspec import Struct, field

from gptrs_cli.terminal.stderr import has_colors, printable

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
