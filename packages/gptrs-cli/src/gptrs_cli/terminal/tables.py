"""Tables: colored and fitted columns on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gptrs_cli.terminal.streams import is_terminal, printable_line, rich_output


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` under `columns`, two spaces apart; in a pipe, each row is one line."""
    header = [column.upper() for column in columns]
    shown = [[printable_line(cell) for cell in row] for row in rows]
    if is_terminal(sys.stdout):
        rich_output().print_table(header, shown)
        return
    widths = [max(map(len, cells)) for cells in zip(header, *shown, strict=True)]
    for row in (header, *shown):
        print("  ".join(map(str.ljust, row, widths)).rstrip())
