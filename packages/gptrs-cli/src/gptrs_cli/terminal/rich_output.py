"""Tables, a spinner and a bar on a terminal, drawn by rich.

`rich_output()` of `terminal.stderr` imports this module on a terminal only, so that pipes and
`--help` start without rich.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gptrs.progress import StepProgress
from gptrs.quoting import clipped
from gptrs_cli.terminal.streams import has_colors

_NARROWEST = 24
"""Least width of the last column of a table, which wraps."""
_INDENT = 4
"""Of columns of a table that go below their rows."""
_GAP = 2
"""Between columns."""
_BESIDE_NAME = 50
"""Width of the bar, the counts and the time beside the label."""
_STYLES = {
    "available": "green",
    "loaded": "green",
    "duplicate": "yellow",
    "incompatible": "red",
    "broken": "red",
}
"""Styles of cells that name a state."""


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on standard output; columns that do not fit go below their rows, indented.

    Cells stay whole, to be copied; only the last column, and cells wider than the terminal, wrap.
    """
    console = _console(sys.stdout)
    room = console.width - _INDENT
    widths = [min(max(map(len, cells)), room) for cells in zip(header, *rows, strict=True)]
    lines = _lines(widths, console.width)
    if len(lines) == 1:
        console.print(_grid(widths, (header, *rows), first=0))
        return
    for number, row in enumerate((header, *rows)):
        for start, stop in lines:
            line = _grid(widths[start:stop], (row[start:stop],), first=number)
            console.print(Padding(line, (0, 0, 0, _INDENT if start else 0)))


def _lines(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Return the ranges of columns of each line: as many as fit, the last one at its least."""
    lines: list[tuple[int, int]] = []
    start, used = 0, 0
    for position, width in enumerate(widths):
        needed = min(width, _NARROWEST) if position == len(widths) - 1 else width
        if position > start and used + needed > room:
            lines.append((start, position))
            start, used = position, _INDENT
        used += width + _GAP
    return [*lines, (start, len(widths))]


class LiveLine:
    """A spinner on standard error, with a text and the seconds since it was set."""

    def __init__(self, text: str, started: float) -> None:
        self._text = text
        self._started = started
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self._rendered,
            console=_console(sys.stderr),
            transient=True,
            # Standard output is for data: rich would draw it above the spinner, on standard error.
            redirect_stdout=False,
        )

    def start(self) -> None:
        """Draw the line; other lines on standard error appear above it."""
        self._live.start()

    def show(self, text: str, started: float) -> None:
        """Replace the text, and restart its seconds."""
        self._text, self._started = text, started

    def stop(self) -> None:
        """Erase the line."""
        self._live.stop()

    def _rendered(self) -> RenderableType:
        seconds = time.monotonic() - self._started
        self._spinner.update(text=Text(f"{self._text} {seconds:.0f} s", no_wrap=True))
        return self._spinner


@contextmanager
def bar(label: str) -> Generator[StepProgress]:
    """Open the scope of a progress bar on standard error; yield the function that moves it."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = _console(sys.stderr)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, redirect_stdout=False
    ) as progress:
        task = progress.add_task(label, total=None)

        def step(done: int, total: int, name: str) -> None:
            description = f"{label}, {name}" if name else label
            room = max(len(label), console.width - _BESIDE_NAME)
            progress.update(
                task, completed=done, total=total, description=clipped(description, room)
            )

        yield step


def page_markdown(text: str) -> None:
    """Show Markdown in the pager of the system, which keeps colors if it is `less -R`."""
    console = _console(sys.stdout)
    # Other pagers would show the escape sequences of colors as text.
    with console.pager(styles="r" in os.environ.get("LESS", "").lower()):
        console.print(Markdown(text, hyperlinks=False))


def _grid(widths: Sequence[int], rows: Sequence[Sequence[str]], first: int) -> Table:
    """Return `rows`, numbered from `first`, as a grid; row 0 is the header."""
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for width in widths[:-1]:
        table.add_column(overflow="fold", width=width)
    table.add_column(overflow="fold")
    for number, row in enumerate(rows, first):
        table.add_row(*_texts(row), style=None if number else "bold")
    return table


def _texts(row: Sequence[str]) -> list[Text]:
    # Texts, not strings: in these rich would read `[...]` as markup.
    return [Text(cell, _STYLES.get(cell, "")) for cell in row]


def _console(stream: TextIO) -> Console:
    return Console(
        file=stream,
        color_system="auto" if has_colors(stream) else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
