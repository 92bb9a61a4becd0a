"""A progress bar for commands that run many texts; it shows compiled kernels, too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gptrs.progress import Progress, StepProgress
from gptrs_cli.terminal.progress import compiling_kernel, progress_bar
from gptrs_observe.measure.kernel_caches import compiling
from gptrs_runtime.loaded_model import LoadedModel


@contextmanager
def text_progress(model: LoadedModel, total: int, doing: str) -> Generator[Progress]:
    """Open the scope of a bar."""
    with progress_bar(doing) as step:
        bar = _Bar(step, total)
        with compiling(model.backend, bar.compiles):
            yield bar.moves


class _Bar:
    """A bar of texts with a count of compiled kernels."""

    def __init__(self, step: StepProgress, total: int) -> None:
        self._step = step
        self._done = 0
        self._total = total

    def moves(self, done: int, total: int) -> None:
        self._done = done
        self._step(done, total, "")

    def compiles(self, number: int, total: int | None) -> None:
        self._step(self._done, self._total, compiling_kernel(number, total))
