"""Backends whose kernels are right and whose executables break the contract in one way each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptrs.backend.contract import Buffer, Executable, InputRole
from gptrs.errors import ExecutionError, UsageError
from gptrs.ir import Program
from gptrs_backend_ref.backend import RefBackend

Arrays = list[np.ndarray]
Results = Sequence[Buffer]
Run = Callable[[Any, Arrays], Results]


@dataclass(frozen=True)
class Misbehaviour:
    """A wrong way to run, and the check that must notice it."""

    name: str
    check: str
    make: Callable[[], RefBackend]


MISBEHAVIOURS: list[Misbehaviour] = []


class Altered(Executable):
    """An executable with another `run`; `right` is the one that does as it should."""

    def __init__(self, backend: Any, right: Executable, roles: Sequence[InputRole], run: Run):
        self.backend, self.right, self.roles, self._run = backend, right, roles, run
        self.kept: Any = None

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        return list(self._run(self, [np.asarray(array) for array in inputs]))


def same_bits(one: Buffer, other: Buffer) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def misbehaves(name: str, check: str) -> Callable[[Run], Run]:
    """Decorator: executables run by this function instead."""

    def register(run: Run) -> Run:
        class Backend(RefBackend):
            shared: Any = None

            def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
                return Altered(self, super().compile(program, roles), list(roles), run)

        MISBEHAVIOURS.append(Misbehaviour(name, check, Backend))
        return run

    return register


@misbehaves("the first input is scratch space", "inputs are left as they are")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    if inputs[0].flags.writeable:
        inputs[0][...] = 0
    return results


@misbehaves("an input is handed out as a result", "results have memory of their own")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    same = [x for x in inputs if any(x is not r and np.array_equal(x, r) for r in results)]
    return [next((x for x in same if np.array_equal(x, r)), r) for r in results]


@misbehaves("one buffer serves two results", "results have memory of their own")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    return [next(r for r in results if same_bits(r, x)) for x in results]


@misbehaves("results live in buffers that are used again", "results outlast later runs")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    self.kept = self.kept or [np.empty_like(result) for result in results]
    for buffer, result in zip(self.kept, results, strict=True):
        buffer[...] = result
    return self.kept


@misbehaves("a result is the constant itself", "results outlast later runs")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    self.kept = results[0] if self.kept is None else self.kept
    return [self.kept, *results[1:]] if len(results) == 2 else results


@misbehaves("every second run adds an error", "runs repeat to the bit")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    self.kept = not self.kept
    if self.kept:
        return results
    return [np.nextafter(r, np.float32(9)) if r.dtype == np.float32 else r for r in results]


@misbehaves("scratch space belongs to the backend", "executables do not disturb each other")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    shapes = [result.shape for result in results]
    if self.backend.shared is not None and self.backend.shared != shapes:
        results = [np.zeros_like(result) for result in results]
    self.backend.shared = shapes
    return results


@misbehaves("two threads share scratch space", "threads share an executable")
def _(self: Altered, inputs: Arrays) -> Results:
    self.kept = self.right.run(inputs)
    time.sleep(0.001)
    return self.kept


@misbehaves("memory is read in its order", "host arrays of any layout")
def _(self: Altered, inputs: Arrays) -> Results:
    def flat(x: np.ndarray) -> np.ndarray:
        return x if x.flags.c_contiguous else x.T.reshape(x.shape)

    return self.right.run([flat(x) for x in inputs])


@misbehaves("inputs of other shapes are taken as they come", "wrong inputs are errors")
def _(self: Altered, inputs: Arrays) -> Results:
    try:
        return self.right.run(inputs)
    except UsageError:
        return [np.zeros((4, 3), np.float32)]


@misbehaves("errors are bare", "indices out of range are errors")
def _(self: Altered, inputs: Arrays) -> Results:
    try:
        return self.right.run(inputs)
    except ExecutionError as error:
        raise IndexError(str(error)) from None


@misbehaves("an error does not say where", "indices out of range are errors")
def _(self: Altered, inputs: Arrays) -> Results:
    try:
        return self.right.run(inputs)
    except ExecutionError:
        raise ExecutionError("an index is out of range") from None


@misbehaves("an error leaves the executable broken", "integer division by zero is an error")
def _(self: Altered, inputs: Arrays) -> Results:
    if self.kept:
        raise ExecutionError("zero was met before")
    try:
        return self.right.run(inputs)
    except ExecutionError:
        self.kept = True
        raise


@misbehaves("weights are remembered by shape", "parameters are not mixed up")
def _(self: Altered, inputs: Arrays) -> Results:
    kept = self.backend.shared or {}
    chosen = [
        kept.setdefault((x.shape, at), x) if role is InputRole.PARAMETER else x
        for at, (x, role) in enumerate(zip(inputs, self.roles, strict=True))
    ]
    self.backend.shared = kept
    return self.right.run(chosen)


@misbehaves("donated memory is reused too early", "donated inputs are read before they are reused")
def _(self: Altered, inputs: Arrays) -> Results:
    for x, role in zip(inputs, self.roles, strict=True):
        if role is InputRole.DONATED:
            x[...] = 0
    return self.right.run(inputs)


@misbehaves("what is not donated is reused", "donated inputs are read before they are reused")
def _(self: Altered, inputs: Arrays) -> Results:
    results = self.right.run(inputs)
    if InputRole.DONATED in self.roles:
        inputs[-1][...] = 7
    return results


@misbehaves("NaN is made canonical", "moved elements keep their bits")
def _(self: Altered, inputs: Arrays) -> Results:
    def canonical(x: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(x), np.float32(np.nan), x) if x.dtype.kind == "f" else x

    return [canonical(result) for result in self.right.run(inputs)]
