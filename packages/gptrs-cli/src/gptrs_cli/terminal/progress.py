"""What a terminal's standard error shows of work that takes long; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer

from gptrs.api import Backend
from gptrs.runtime.measure.kernel_caches import compiling
from gptrs_cli.terminal.stderr import Waiting, is_terminal

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
            if done == bar.pos:  # another name alone would not be shown
                bar.render_progress()
            bar.update(done - bar.pos)

        yield step


@contextmanager
def compilation_shown(backend: Backend, waiting: Waiting) -> Generator[None]:
    """Scope in which `waiting` adds how many kernels had to be compiled, which happens once."""

    def tell(number: int, total: int | None) -> None:
        of_all = "" if total is None else f" of {total}"
        waiting.add(f"compiling kernel {number}{of_all} (once)")

    with compiling(backend, tell):
        yield
