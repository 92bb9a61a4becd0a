"""A backend that runs only some ops, in memory of its own, and falls back to another one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import cast

import numpy as np

from gptrs.backend.contract import (
    Backend,
    BoundInputs,
    Buffer,
    Executable,
    InputRole,
    KernelRun,
)
from gptrs.backend.op_table import require_supported
from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.backend import RefBackend

TWELVE = (
    "add", "mul", "sub", "div", "exp", "dot_general", "maximum", "rsqrt", "tanh", "select",
    "reshape", "transpose",
)  # fmt: skip
"""A dozen ops: no reductions, no indexing, no control flow."""


class Card:
    """An array in the memory of the backend; NumPy does not read it by itself."""

    __array__ = None

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype


class PartialExecutable(Executable):
    """A program for `ref`, on cards; it spoils donated inputs, as it may."""

    def __init__(self, made: Executable, roles: Sequence[InputRole]) -> None:
        self.made, self.roles = made, roles
        self.bound: list[BoundInputs] = []

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        self.bound.append(bound)
        return super().run_bound(inputs, bound)

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        results = self.run(inputs)
        tell(KernelRun("all", "", 1e-6, None, inputs=tuple(range(len(inputs)))))
        return results

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        arrays = [cast("Card", given).array for given in inputs]
        results: list[Buffer] = [
            Card(cast("np.ndarray", result)) for result in self.made.run(arrays)
        ]
        for array, role in zip(arrays, self.roles, strict=True):
            if role is InputRole.DONATED:
                array[...] = np.zeros((), array.dtype)  # an error for memory that is only read
        return results


class PartialBackend(Backend):
    """Runs `ops` and counts the bytes that it moves; `cards` are its living buffers."""

    name = "partial"
    falls_back_to = "ref"

    def __init__(self, ops: Collection[str] = TWELVE, smallest_part: int = 1) -> None:
        self.ops = frozenset(ops)
        self.smallest_part = smallest_part
        self.moved = 0
        self.cards = weakref.WeakSet[Card]()
        self.compiled: list[Program] = []
        self._inner = RefBackend()

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        return None if op.name in self.ops else f"`{op.name}` (not one of its ops)"

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        require_supported(self, program)
        self.compiled.append(program)
        return PartialExecutable(self._inner.compile(program, roles), roles)

    def to_device(self, array: np.ndarray) -> Card:
        self.moved += array.nbytes
        card = Card(np.array(self._inner.to_device(array)))
        self.cards.add(card)
        return card

    def to_host(self, buffer: Buffer) -> np.ndarray:
        array = cast("Card", buffer).array
        self.moved += array.nbytes
        return array.copy()


class SharingBackend(PartialBackend):
    """Shares the memory of the host in both directions; what `to_host` returns is only read."""

    name = "sharing"

    def to_device(self, array: np.ndarray) -> Card:
        return Card(self._inner.to_device(array))

    def to_host(self, buffer: Buffer) -> np.ndarray:
        view = cast("Card", buffer).array.view()
        view.flags.writeable = False
        return view


class SpoilingBackend(SharingBackend):
    """A fallback that runs every op and overwrites what it is given."""

    name = "spoiling"
    falls_back_to = None
