"""The values of a program that runs on two backends, and their copies on the other side."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, Buffer
from gptrs.capture.backend_calls import to_device, to_host

Copied = Callable[[Backend, int, float, Buffer], None]
"""Called after a copy with its target, the number of the value, the seconds and the copy."""


class Sides(Struct, frozen=True):
    """The two backends of a program, and the values that are weights, by number."""

    home: Backend
    other: Backend
    weights: frozenset[int]


class TwoSidedValues:
    """The values of a run, on one side or on both."""

    def __init__(
        self, inputs: Sequence[Buffer], count: int, sides: Sides, copied: Copied | None
    ) -> None:
        free: list[Buffer | None] = [None] * (count - len(inputs))
        self._home: list[Buffer | None] = [*inputs, *free]
        self._other: list[Buffer | None] = [None] * count
        self._sides = sides
        self._copied = copied

    def at(self, number: int, home: bool, donated: bool) -> Buffer:
        """Return the value on a side, copied if it is only on the other; `donated`: to be written.

        What is donated is read by nobody afterwards on either side, so it may share memory.
        """
        side, opposite = (self._home, self._other) if home else (self._other, self._home)
        found = side[number]
        if found is None:
            source = opposite[number]
            assert source is not None, "a value is not dropped before its last use"
            sides = self._sides
            here, there = (sides.home, sides.other) if home else (sides.other, sides.home)
            started = time.perf_counter()
            if number in sides.weights:
                found = _kept_copy(source, there, here)
            else:
                found = _copy(source, there, here, donated)
            side[number] = found
            if self._copied is not None:
                self._copied(here, number, time.perf_counter() - started, found)
        return found

    def put(self, numbers: Sequence[int], buffers: Sequence[Buffer], home: bool) -> None:
        """Take the results of a part."""
        side = self._home if home else self._other
        for number, buffer in zip(numbers, buffers, strict=True):
            side[number] = buffer

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget values after their last use."""
        for number in numbers:
            self._home[number] = self._other[number] = None


def _copy(buffer: Buffer, source: Backend, target: Backend, donated: bool) -> Buffer:
    array = to_host(source, buffer)
    # A view of memory that the source may only read: the target could not write to it.
    if donated and not array.flags.writeable:
        array = array.copy()
    return to_device(target, array)


_copies: dict[tuple[int, Backend, Backend], tuple[weakref.ref[Buffer], Buffer]] = {}
"""Copies of weights by the identity of the buffer and both backends: programs share them."""


def _kept_copy(buffer: Buffer, source: Backend, target: Backend) -> Buffer:
    """Return the copy of a weight, kept until its buffer dies.

    A buffer without weak references is copied in each run, or once for each `BoundInputs`.
    """
    key = id(buffer), source, target
    found = _copies.get(key)
    if found is not None and found[0]() is buffer:
        return found[1]
    made = _copy(buffer, source, target, False)
    # A copy that is a view of the buffer would keep it alive forever, and costs nothing to make.
    if not _refers_to(made, buffer):
        with suppress(TypeError):
            _copies[key] = weakref.ref(buffer, lambda _: _copies.pop(key, None)), made
    return made


def _refers_to(view: object, buffer: Buffer) -> bool:
    while view is not None:
        if view is buffer:
            return True
        view = view.base if isinstance(view, np.ndarray) else None
    return False
