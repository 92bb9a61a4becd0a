"""Runs a schedule call by call and measures each; the interpreter otherwise does all at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gptrs.backend.profiled import KernelRun
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.run.assembly import Code
from gptrs_backend_numba.schedule import KernelCall
from gptrs_backend_numba.views import View

_PARTIAL = ("take", "gather", "scatter", "segment", "dynamic_", ".attention.")
"""In the names of what touches a part of its tensors that depends on values."""


class Profiler:
    """Stands in for one run of the interpreter over the words of a schedule.

    `shape` gives symbolic sizes the numbers of the run: another run needs another profiler.
    """

    def __init__(
        self,
        interpret: Kernel,
        code: Code,
        words: Sequence[int],
        start: int,
        shape: Callable[[Shape], Shape],
    ) -> None:
        self._interpret = interpret
        self._shape = shape
        self._code = code
        self._words = words
        self._start = start
        self._described: dict[int, tuple[str, str, int | None]] = {}

    def run(self, tell: Callable[[KernelRun], None]) -> int:
        """What the interpreter returns at its end, 0 or the negative number of a failure."""
        position = self._code.begin
        while True:
            at = self._next(position)
            started = time.perf_counter()
            position = self._interpret(self._start, position, 1)
            seconds = time.perf_counter() - started
            if position >= 0 and at in self._code.calls:
                kernel, operands, nbytes = self._description(at)
                tell(KernelRun(kernel, operands, seconds, nbytes))
            if position <= 0:
                return position

    def _next(self, at: int) -> int:
        """The position of the instruction with which one step of the interpreter ends."""
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

    def _description(self, at: int) -> tuple[str, str, int | None]:
        found = self._described.get(at)
        if found is None:
            found = self._described[at] = _describe(self._code.calls[at], self._shape)
        return found


def _describe(call: KernelCall, shape: Callable[[Shape], Shape]) -> tuple[str, str, int | None]:
    """The ops, the operands and the bytes of a call; a tensor that it takes twice counts once."""
    *given, write = (
        replace(view, shape=shape(view.shape), strides=shape(view.strides)) for view in call.views
    )
    reads = {(view.storage, view.offset): view for view in given}.values()
    operands = ", ".join(map(_type, reads))
    partial = any(part in call.origin for part in _PARTIAL)
    nbytes = None if partial else sum(map(_nbytes, (*reads, write)))
    return call.origin, f"{operands} -> {_type(write)}", nbytes


def _type(view: View) -> str:
    return str(TensorType(view.dtype, view.shape))


def _nbytes(view: View) -> int:
    """Of the elements in memory: one that a broadcast repeats is read once."""
    axes = zip(view.shape, view.strides, strict=True)
    return math.prod(size for size, stride in axes if stride or not size) * view.dtype.itemsize
