"""The table of lowerings: what each op is in JAX, by op class and element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from jax import Array

from gptrs.api.backends import OpTable
from gptrs.api.programs import Instruction, Region, TensorType, Value

Arrays: TypeAlias = Sequence[Array]


class Walk(Protocol):
    """The walk over a program that calls the lowerings; they report errors to it."""

    @property
    def for_one_cpu(self) -> bool:
        """Whether products read pages of a pool where they lie: on one CPU, which has no copies
        to spare."""
        ...

    def check(self, is_bad: Array, values: Array, message: str) -> None:
        """Make the run fail where any of `is_bad` holds; `{}` in `message` is the value there.

        What is bad follows from the message and the values.
        """
        ...

    def maker(self, value: Value) -> tuple[Instruction, Arrays] | None:
        """Return the instruction that made `value`, and its operands; None for most ops."""
        ...

    def repeats_rows(self, indices: Value) -> bool:
        """Whether `indices` is known to have one number in each row."""
        ...

    def cond(self, predicate: Array, branches: Sequence[Region], operands: Arrays) -> Arrays:
        """Run the first of two regions if the predicate is true, else the second."""
        ...

    def loop(self, condition: Region, body: Region, state: Arrays) -> Arrays:
        """Run `body` on the state while `condition` holds of it; return the last state."""
        ...

    def scan(
        self, body: Region, carried: Arrays, scanned: Arrays, length: int, reverse: bool
    ) -> Arrays:
        """Run `body` for each step; return the last carried values, then the stacked results."""
        ...

    def call(self, function: str, operands: Arrays) -> Arrays:
        """Run a function of the program."""
        ...


@dataclass(frozen=True)
class LoweringContext:
    """One instruction: its types, where it stands, and the walk that it belongs to."""

    instruction: Instruction
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    walk: Walk

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]


Lowering: TypeAlias = Callable[..., Array | Arrays]
"""`(op, ctx, *arrays) -> array`: the held result for held operands; several results as a tuple."""

TABLE: OpTable[Lowering] = OpTable("jax")
"""Filled when `gptrs_backend_jax.lowerings` is imported."""
