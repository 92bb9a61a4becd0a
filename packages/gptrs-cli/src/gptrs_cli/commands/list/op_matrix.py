"""The table of ops by element types, narrow enough for a terminal of 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer

from gptrs_cli.terminal.stderr import has_colors

_GROUPS = {
    "i": {"i1": "1"},
    "si": {"si4": "4", "si8": "8", "si16": "16", "si32": "32", "si64": "64"},
    "ui": {"ui4": "4", "ui8": "8", "ui16": "16", "ui32": "32", "ui64": "64"},
    "f8": {"f8e4m3": "e4", "f8e5m2": "e5"},
    "bf": {"bf16": "16"},
    "f": {"f16": "16", "f32": "32", "f64": "64"},
    "cf": {"cf32": "32", "cf64": "64"},
}
"""The element types by the first line of the header, with what its second line says."""
_COLUMNS = [dtype for group in _GROUPS.values() for dtype in group]
_MARKS = {"all": "x", "some": "~", "none": "-"}
_LOOKS = {"x": "green", "~": "yellow", "-": "bright_black"}
_WIDTH = 3
LEGEND = "x taken   ~ taken in some forms   - refused   blank: not defined by PTIR"


def print_op_matrix(support: Mapping[str, Mapping[str, str]]) -> None:
    """Print what `gptrs.api.backends.op_support` found, a line an op, and what the marks mean."""
    left = max(map(len, ["OP", *support]))
    colored = has_colors(sys.stdout)
    bits = [name for group in _GROUPS.values() for name in group.values()]
    for title, cells in (("", _group_names()), ("OP", bits)):
        line = title.ljust(left) + "".join(cell.rjust(_WIDTH) for cell in cells)
        print(typer.style(line, bold=True) if colored else line.rstrip())
    for op, types in support.items():
        marks = [_MARKS[types[dtype]] if dtype in types else "" for dtype in _COLUMNS]
        cells = [_cell(mark, colored) for mark in marks]
        print(f"{op.ljust(left)}{''.join(cells)}".rstrip())


def _group_names() -> list[str]:
    """Return the name of each group above its first column, and nothing above the others."""
    return [
        name if position == 0 else ""
        for name, group in _GROUPS.items()
        for position in range(len(group))
    ]


def _cell(mark: str, colored: bool) -> str:
    cell = mark.rjust(_WIDTH)
    return typer.style(cell, fg=_LOOKS[mark]) if colored and mark else cell
