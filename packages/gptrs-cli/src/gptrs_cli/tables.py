"""Tables of aligned columns; on a terminal with its width and colours, in a pipe without."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

import typer

from gptrs_cli.stderr import has_colors, is_terminal, printable

_GAP = "  "
_NARROWEST = 24
"""Columns that the last, wrapped column of a table needs at least; below, it is not wrapped."""
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
    lines = [line for row in shown for line in _wrapped(row, sum(widths[:-1]))]
    colored = has_colors(sys.stdout)
    print(_line(header, widths, ["bold" if colored else ""] * len(header)))
    for line in lines:
        print(_line(line, widths, [_COLORS.get(cell, "") if colored else "" for cell in line]))


def _wrapped(row: list[str], taken: int) -> Iterator[list[str]]:
    """The lines that a row takes on a terminal, where its other columns take `taken` characters."""
    left = shutil.get_terminal_size().columns - taken - len(_GAP) * (len(row) - 1)
    if not is_terminal(sys.stdout) or left < _NARROWEST:
        yield row
        return
    first, *rest = textwrap.wrap(row[-1], left) or [""]
    yield [*row[:-1], first]
    for continuation in rest:
        yield [*([""] * (len(row) - 1)), continuation]


def _line(cells: Sequence[str], widths: Sequence[int], looks: Sequence[str]) -> str:
    parts = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    parts[-1] = parts[-1].rstrip()
    line = _GAP.join(_styled(part, look) for part, look in zip(parts, looks, strict=True))
    return line.rstrip()


def _styled(text: str, look: str) -> str:
    if not look:
        return text
    return typer.style(text, bold=True) if look == "bold" else typer.style(text, fg=look)
