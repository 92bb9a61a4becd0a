"""A bar on a terminal's standard error for work of a known number of steps; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer

from gptrs_cli.stderr import is_terminal

Step = Callable[[int, int, str], None]
"""Called with the number of steps done, of all steps, and the name of the next one."""


@contextmanager
def progress_bar(label: str) -> Generator[Step | None]:
    """Scope that shows a bar; what it yields moves the bar, None where nobody would see it."""
    if not is_terminal(sys.stderr):
        yield None
        return
    with typer.progressbar(length=1, label=label, file=sys.stderr, show_pos=True) as bar:

        def step(done: int, total: int, name: str) -> None:
            bar.length = total
            bar.label = f"{label}, {name}" if name else label
            bar.update(done - bar.pos)

        yield step
