"""What a terminal's standard error shows of work that takes long; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from gptrs.api import Backend
from gptrs.runtime.measure.kernel_caches import compiling
from gptrs_cli.terminal.stderr import Step, is_terminal, rich_output
from gptrs_cli.terminal.waiting import Waiting


@contextmanager
def progress_bar(label: str) -> Generator[Step | None]:
    """Scope of a bar; yields the function that moves it, None where nobody would see it."""
    if not is_terminal(sys.stderr):
        yield None
        return
    with rich_output().bar(label) as step:
        yield step


@contextmanager
def compilation_shown(backend: Backend, waiting: Waiting) -> Generator[None]:
    """Scope in which `waiting` counts the kernels that are compiled, which happens once."""

    def tell(number: int, total: int | None) -> None:
        waiting.add(compiling_kernel(number, total))

    with compiling(backend, tell):
        yield


def compiling_kernel(number: int, total: int | None) -> str:
    """Return the words for the compilation of kernel `number` of `total`, if that is known."""
    of_all = "" if total is None else f" of {total}"
    return f"compiling kernel {number}{of_all} (once)"
