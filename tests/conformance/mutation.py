"""Backends that are wrong in one way: the reference backend with one kernel changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.ir import OPS, Op
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """A wrong backend, and the ops of which a case must fail on it."""

    name: str
    ops: tuple[str, ...]
    make: Callable[[], Backend]


class Mutations:
    """Collects the mutants of a module: `mutants`, in the order in which they are defined."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def wrong(self, name: str, *ops: str) -> Callable[[Callable[[Kernel], Kernel]], object]:
        """Decorator: a function from the right kernel of these ops to the wrong one."""

        def register(change: Callable[[Kernel], Kernel]) -> object:
            table = TABLE.changed({OPS[op]: change for op in ops})
            self.mutants.append(Mutant(name, ops, lambda: RefBackend(table)))
            return change

        return register

    def with_attributes(self, name: str, op: str, **values: object) -> None:
        """A kernel that takes these values for the attributes, whatever they are."""

        @self.wrong(name, op)
        def change(kernel: Kernel) -> Kernel:
            return lambda op, *arrays: kernel(_replaced(op, values), *arrays)


def _replaced(op: Op, values: dict[str, object]) -> Op:
    return replace(op, **values)  # pyright: ignore[reportArgumentType]
