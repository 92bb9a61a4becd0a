"""An optional protocol of executables: the time of each kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from gptrs.backend.protocol import Buffer
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One call of a kernel."""

    kernel: str
    """The names of the ops that it computes."""
    operands: str
    """The types that it reads and the one that it writes, `f32[2, 3], f32[3] -> f32[2]`."""
    seconds: float
    nbytes: int | None
    """Bytes of the tensors that it reads and writes, None if that is not known."""
    operations: int | None = None
    """Operations on elements, a multiply-add is two; None if that is not known."""
    inputs: tuple[int, ...] = ()
    """The inputs of the program that it reads or writes, by number, as far as that is known."""
    started: float | None = None
    """When it began, in seconds of `time.perf_counter`; None: it has just ended."""


@runtime_checkable
class ProfiledExecutable(Protocol):
    """An executable that can tell what its kernels take."""

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Like `run`, to the last bit, and `tell` each call of a kernel after it; slower."""
        ...
