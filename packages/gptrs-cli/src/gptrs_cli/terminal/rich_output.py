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
"""Least width of the last column of a table; if there is less, its cells go below their rows."""
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
    """Print a table on standard output; the last column wraps, or goes below its row."""
    console = _console(sys.stdout)
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if console.width - before >= min(_NARROWEST, widths[-1]):
        table = _grid(widths)
        for number, row in enumerate((header, *rows)):
            table.add_row(*_texts(row), style=None if number else "bold")
        console.print(table)
        return
    for number, row in enumerate((header, *rows)):
        table = _grid(widths[:-1], wraps=True)
        table.add_row(*_texts(row[:-1]), style=None if number else "bold")
        console.print(table)
        console.print(Padding(Text(row[-1], "" if number else "bold"), (0, 0, 0, 4)))


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


def _grid(widths: Sequence[int], *, wraps: bool = False) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for position, width in enumerate(widths):
        last = position == len(widths) - 1
        if last or wraps:
            table.add_column(overflow="fold", width=width if wraps else None)
        else:
            table.add_column(no_wrap=True, width=width)
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
