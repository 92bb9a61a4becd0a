"""Runs a schedule call by call and measures each; the interpreter otherwise does all at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gptrs.backend.contract import KernelRun
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.run.assembly import Code
from gptrs_backend_numba.schedule import KernelCall
from gptrs_backend_numba.views import MemorySpace, View

_PARTIAL = ("take", "gather", "scatter", "segment", "dynamic_", "attention.", "update_pages")
"""In the names of what touches a part of its tensors that depends on values."""


class Profiler:
    """Stands in for one run of the interpreter over the words of a schedule.

    `shape` gives symbolic sizes the numbers of the run: other sizes need another profiler.
    `packed` has the input that each packed copy is made of.
    """

    def __init__(
        self,
        interpret: Kernel,
        code: Code,
        words: Sequence[int],
        start: int,
        shape: Callable[[Shape], Shape],
        packed: Sequence[int],
    ) -> None:
        self._interpret = interpret
        self._shape = shape
        self._code = code
        self._words = words
        self._start = start
        self._packed = packed
        self._described: dict[int, KernelRun] = {}

    def run(self, tell: Callable[[KernelRun], None]) -> int:
        """Return the result of the interpreter: 0, or the negative number of a failure."""
        position = self._code.begin
        while True:
            at = self._next(position)
            started = time.perf_counter()
            position = self._interpret(self._start, position, 1)
            seconds = time.perf_counter() - started
            if position >= 0 and at in self._code.calls:
                tell(replace(self._description(at), seconds=seconds, started=started))
            if position <= 0:
                return position

    def _next(self, at: int) -> int:
        """Return the position of the instruction with which one step of the interpreter ends."""
        while True:
            match self._words[at]:
                case interpreter.PLACE:
                    at += 4 + 2 * self._words[at + 3]
                case interpreter.BEGIN:
                    at += 3
                case interpreter.JUMP:
                    at = self._words[at + 1]
                case _:
                    return at

    def _description(self, at: int) -> KernelRun:
        found = self._described.get(at)
        if found is None:
            found = self._described[at] = self._describe(self._code.calls[at])
        return found

    def _describe(self, call: KernelCall) -> KernelRun:
        """Return a run without times; a tensor that the call takes twice counts once."""
        *given, write = (
            replace(view, shape=self._shape(view.shape), strides=self._shape(view.strides))
            for view in call.views
        )
        reads = [*{(view.storage, view.offset): view for view in given}.values()]
        partial = any(part in call.origin for part in _PARTIAL)
        return KernelRun(
            call.origin,
            f"{', '.join(map(_type, reads))} -> {_type(write)}",
            0.0,
            None if partial else sum(map(_nbytes, (*reads, write))),
            None if partial else operations(call.origin, reads, write),
            self._inputs([*reads, write]),
        )

    def _inputs(self, views: Sequence[View]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for storage in (view.storage.root for view in views):
            if storage.space is MemorySpace.INPUT:
                found[storage.index] = None
            elif storage.space is MemorySpace.PACKED:
                found[self._packed[storage.index]] = None
        return tuple(found)


def operations(origin: str, reads: Sequence[View], write: View) -> int | None:
    """Return the operations of a call, a multiply-add is two; None where shapes do not tell."""
    if ".linear." in origin:  # without a weight it rearranges rows for the product
        return 2 * math.prod(write.shape[:-1]) * reads[1].size if len(reads) > 1 else 0
    if "dot_general" in origin:
        if not write.dtype.is_float or len(write.shape) != 2 or len(reads) < 2:
            return None
        depth = math.isqrt(reads[0].size * reads[1].size // max(write.size, 1))
        return 2 * write.size * depth
    if "conv" in origin:
        return None
    each = 7 if "norm" in origin else 1
    return each * max(view.size for view in (*reads, write))


def _type(view: View) -> str:
    return str(TensorType(view.dtype, view.shape))


def _nbytes(view: View) -> int:
    """Of the elements in memory: one that a broadcast repeats is read once."""
    axes = zip(view.shape, view.strides, strict=True)
    return math.prod(size for size, stride in axes if stride or not size) * view.dtype.itemsize
