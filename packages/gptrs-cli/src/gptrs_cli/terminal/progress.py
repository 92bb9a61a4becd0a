"""Progress of long work on standard error: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Final

from gptrs.api.backends import Backend
from gptrs.progress import StepProgress
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.streams import is_terminal, note, rich_output
from gptrs_observe.measure.compilations import compilations_told
from gptrs_observe.measure.kernel_caches import compiling

LINE_SECONDS: Final = 30.0
"""Seconds before the first line of progress, and between lines."""


@contextmanager
def progress_bar(label: str, *, tells_name: bool = False) -> Generator[StepProgress]:
    """Open the scope of a progress bar; yield the function that moves it.

    If standard error is no terminal, work longer than `LINE_SECONDS` prints a line from time to
    time, with the name of the step if `tells_name`.
    """
    if not is_terminal(sys.stderr):
        yield _Lines(label, tells_name=tells_name).step
        return
    with rich_output().bar(label) as step:
        yield step


class _Lines:
    """Lines such as `prompts: 120 of 1000, about 4 min left`."""

    def __init__(self, label: str, *, tells_name: bool = False) -> None:
        self._label = label
        self._tells_name = tells_name
        self._told = time.monotonic()
        self._first: tuple[float, int] | None = None

    def step(self, done: int, total: int, name: str) -> None:
        """Print the progress if the last line is old enough."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        if now - self._told < LINE_SECONDS or done >= total:
            return
        self._told = now
        # The first call comes after loading and compiling, which say nothing about the time that is
        # left.
        started, before = self._first
        left = ""
        if done > before:
            left = f", about {_duration((now - started) / (done - before) * (total - done))} left"
        named = f", {name}" if self._tells_name else ""
        note(f"{self._label}: {done} of {total}{left}{named}")


def _duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours, rounded up so that it is never 0."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90)):
        if seconds <= size * most:
            return f"{max(1, math.ceil(seconds / size))} {unit}"
    return f"{math.ceil(seconds / 3600)} h"


@contextmanager
def compilation_shown(backend: Backend, waiting: Waiting) -> Generator[None]:
    """Open a scope in which `waiting` shows what is compiled: kernels or whole programs."""

    def tell(number: int, total: int | None) -> None:
        waiting.add(compiling_kernel(number, total))

    by_program = nullcontext() if backend.tells_kernels else compilations_told(waiting.add)
    with compiling(backend, tell), by_program:
        yield


def compiling_kernel(number: int, total: int | None) -> str:
    """Return the text for compiling kernel `number` of `total` (None: unknown)."""
    of_all = "" if total is None else f" of {total}"
    return f"compiling kernel {number}{of_all} (once)"
