"""Progress of long work, shown on standard error if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

from gptrs.api import Backend, KernelCache
from gptrs.runtime.measure.kernel_caches import compiling
from gptrs.runtime.observe.compilations import compilations_told
from gptrs_cli.terminal.stderr import Step, is_terminal, rich_output
from gptrs_cli.terminal.waiting import Waiting


@contextmanager
def progress_bar(label: str) -> Generator[Step | None]:
    """Open the scope of a bar; yield the function that moves it, None without a terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    with rich_output().bar(label) as step:
        yield step


@contextmanager
def compilation_shown(backend: Backend, waiting: Waiting) -> Generator[None]:
    """Open a scope in which `waiting` says what is compiled: kernels, or whole programs."""

    def tell(number: int, total: int | None) -> None:
        waiting.add(compiling_kernel(number, total))

    by_program = (
        nullcontext() if isinstance(backend, KernelCache) else compilations_told(waiting.add)
    )
    with compiling(backend, tell), by_program:
        yield


def compiling_kernel(number: int, total: int | None) -> str:
    """Return the text for the compilation of kernel `number` of `total`, None if unknown."""
    of_all = "" if total is None else f" of {total}"
    return f"compiling kernel {number}{of_all} (once)"
