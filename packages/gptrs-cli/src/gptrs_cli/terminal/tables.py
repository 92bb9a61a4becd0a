"""Tables of aligned columns; on a terminal with its width and colours, in a pipe without."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from gptrs_cli.terminal.stderr import has_colors, is_terminal, printable

_GAP = "  "
_NARROWEST = 24
"""Columns that the last, wrapped column needs at least; with less it gets lines of its own."""
_INDENT = "    "
_COLORS = {
    "available": "green",
    "loaded": "green",
    "duplicate": "yellow",
    "incompatible": "red",
    "broken": "red",
}
"""The colours of words that say a state."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` under `columns`; a terminal shows states in colour and wraps the last column."""
    header = [column.upper() for column in columns]
    shown = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(header, *shown, strict=True)]
    colored = has_colors(sys.stdout)
    print(_line(header, widths, ["bold" if colored else ""] * len(header)))
    for row in shown:
        looks = [_COLORS.get(cell, "") if colored else "" for cell in row]
        first, *rest = _last_column(row, sum(widths[:-1]))
        print(_line([*row[:-1], first], widths, looks))
        for line in rest:
            print(line)


def _last_column(row: list[str], taken: int) -> list[str]:
    """What the last column shows, and the lines that follow the row.

    They are there on a terminal only, where the other columns take `taken` characters.
    """
    if not is_terminal(sys.stdout):
        return [row[-1]]
    width = shutil.get_terminal_size().columns
    before = taken + len(_GAP) * (len(row) - 1)
    if width - before >= _NARROWEST:
        first, *rest = textwrap.wrap(row[-1], width - before) or [""]
        return [first, *(" " * before + line for line in rest)]
    if len(row[-1]) <= width - before:
        return [row[-1]]
    below = textwrap.wrap(row[-1], max(width - len(_INDENT), _NARROWEST))
    return ["", *(_INDENT + line for line in below)]


def _line(cells: Sequence[str], widths: Sequence[int], looks: Sequence[str]) -> str:
    parts = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    parts[-1] = parts[-1].rstrip()
    line = _GAP.join(_styled(part, look) for part, look in zip(parts, looks, strict=True))
    return line.rstrip()


def _styled(text: str, look: str) -> str:
    if not look:
        return text
    return typer.style(text, bold=True) if look == "bold" else typer.style(text, fg=look)
