"""The backend of a follower process: it repeats what the first process does until that ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np
from msgspec import Struct

from gptrs.api import UsageError
from gptrs.api.backends import Backend, BoundInputs, Buffer, Executable, InputRole
from gptrs.api.programs import Op, Program, TensorType, dtypes, parse_program
from gptrs_backend_jax.client import leave_processes
from gptrs_backend_jax.grid import Index
from gptrs_backend_jax.leading.channel import Leader

if TYPE_CHECKING:
    from gptrs_backend_jax.backend import JaxBackend

Held: TypeAlias = dict[int, Any]
"""Buffers, programs and bound weights by the number that the first process gave them."""
Head: TypeAlias = Mapping[str, Any]


class FollowingBackend(Backend):
    """A backend that runs only the leader's programs."""

    name = "jax"
    follows = True

    def __init__(self, backend: JaxBackend, leader: Leader) -> None:
        self._backend = backend
        self._leader = leader
        self.ignored = backend.ignored
        self.mesh = backend.mesh

    def follow(self) -> None:
        """Repeat what the first process does until it ends; BackendError if it is lost."""
        held: Held = {}
        with closing(self._leader):
            while True:
                head, parts = self._leader.receive()
                for number in cast("Sequence[int]", head["forget"]):
                    held.pop(number, None)
                if head["do"] == "end":
                    leave_processes()  # before the first one, which waits for it, is gone
                    return
                _ACTIONS[cast("str", head["do"])](self._backend, held, head, parts)

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no lowering of `op` on these types, None if there is one."""
        return self._backend.refusal(op, operands, results)

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        """UsageError: programs come from the first process."""
        _refuse()

    def to_device(self, array: np.ndarray) -> Buffer:
        """UsageError: tensors come from the first process."""
        _refuse()

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """UsageError: the first process reads results."""
        _refuse()


def _refuse() -> NoReturn:
    raise UsageError(
        "this process follows the first one, and runs no programs itself",
        hint="call `follow`, or ask the first one",
    )


class _Received(Struct, frozen=True):
    """The parts of a tensor that this process needs, as a `ShardSource`."""

    type: TensorType
    parts: Mapping[str, np.ndarray]

    def read(self, index: Index) -> np.ndarray:
        return self.parts[str(index)]


def _place(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    type_ = TensorType(dtypes.by_name(head["dtype"]), tuple(head["shape"]))
    found: dict[str, np.ndarray] = {}
    for bounds, part in zip(head["indices"], parts, strict=True):
        index = tuple(slice(start, stop) for start, stop in bounds)
        shape = tuple(
            len(range(*each.indices(size))) for each, size in zip(index, type_.shape, strict=True)
        )
        found[str(index)] = np.frombuffer(part, type_.dtype.numpy).reshape(shape)
    sharding = tuple(head["sharding"])
    held[head["number"]] = backend.place(_Received(type_, found), sharding)


def _compile(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    program = parse_program(parts[0].decode())
    held[head["number"]] = backend.compile(program, [InputRole(name) for name in head["roles"]])


def _bind(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    held[head["number"]] = BoundInputs([held[number] for number in head["inputs"]])


def _run(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    inputs = [held[number] for number in head["inputs"]]
    bound = None if head["bound"] is None else held[head["bound"]]
    # Whether it fails the first process finds out.
    results, _ = held[head["program"]].submit(inputs, bound)
    held.update(zip(head["results"], results, strict=True))


def _copy(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    held[head["number"]] = backend.copy(held[head["of"]])


def _whole(backend: JaxBackend, held: Held, head: Head, parts: Sequence[bytes]) -> None:
    backend.require_grid().whole(held[head["of"]])


_Action: TypeAlias = Callable[["JaxBackend", Held, Head, Sequence[bytes]], None]
_ACTIONS: Mapping[str, _Action] = {
    "place": _place,
    "compile": _compile,
    "bind": _bind,
    "run": _run,
    "copy": _copy,
    "whole": _whole,
}
