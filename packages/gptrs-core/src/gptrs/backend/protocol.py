"""The contract between gptrs and a backend: a program goes in, an executable comes out."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType


class Buffer(Protocol):
    """A tensor in the memory of a backend; a NumPy array is one. Only its backend looks inside."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims, in row-major order."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy storage type of the elements."""
        ...


class InputRole(enum.Enum):
    """The role of an input of a compiled program."""

    ARGUMENT = "argument"
    """Changes from run to run; must be left as it is."""
    PARAMETER = "parameter"
    """A model weight: the same buffer object in every run, so that work on it can be remembered."""
    DONATED = "donated"
    """Given away: its memory may be overwritten or returned as (part of) a result."""
    STREAMED = "streamed"
    """A model weight that does not stay in memory. Like PARAMETER, to the last bit of the results,
    but it may be another buffer object in each run, and nothing that is made of it may outlive it.
    """


class Executable(Protocol):
    """A compiled program.

    It may have an attribute `nbytes: int`, the bytes that it holds of its own, such as weights in
    another format: the program cache keeps to its budget by it.
    """

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run on inputs in the order of the parameters of `@main`; results in the order of return.

        Results belong to the caller: no later run changes them. Inputs that are not donated are
        neither changed nor returned. Raises ExecutionError for what depends on values, such as
        an index out of range. May be called from several threads.
        """
        ...


class Backend(Protocol):
    """An execution engine for PTIR. A new one is three short files, see docs/recipes.

    It may have an attribute `compile_settings: Hashable`: all that decides, besides a program and
    its roles, what `compile` makes of it, such as variables of the environment. Programs that were
    compiled under other settings are not used. It is read for every call, so it must be quick.

    With an attribute `reads_mapped_files` that is True it is given weights as views of mapped
    files, and sees to what becomes of a run when such a file is cut: `gptrs.backend.mapped_files`.
    All other backends are given weights in memory.

    `flushes_subnormals` that is True says that its arithmetic takes subnormal f32 and f64 for 0:
    PTIR, section Exactness. The conformance kit does not judge these elements then.
    """

    @property
    def name(self) -> str:
        """The name under which the plugin registers it."""
        ...

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why this backend cannot run `op` on these types, None if it can."""
        ...

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        """Prepare a verified program; one role for each parameter of `@main`.

        Raises UnsupportedError that names every op and dtype it lacks, before anything runs
        (`gptrs.backend.op_table.require_supported` does this from `refusal`).
        """
        ...

    def to_device(self, array: np.ndarray) -> Buffer:
        """Return a buffer with the elements of `array`, which it may share and never writes."""
        ...

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer` as a NumPy array, which may be a view of it."""
        ...
