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


class TwoSided(Struct, eq=False):
    """A value on one side or on both: `home`, `other`, or an array that is on neither yet."""

    home: Buffer | None = None
    other: Buffer | None = None
    array: np.ndarray | None = None
    source: int | None = None
    """The number of the input of the whole program that it is, if it is one."""
    weight: bool = False
    """Whether its copies are kept as long as its buffer."""
    lent: bool = False
    """Whether one of the two is a view of memory that may only be read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, on whichever side it is."""
        for found in (self.home, self.other, self.array):
            if found is not None:
                return tuple(found.shape)
        raise AssertionError("a value is somewhere")


Copied = Callable[[Backend, TwoSided, float, Buffer], None]
"""Called after a copy with its target, the value, the seconds and the copy."""


class Sides(Struct, frozen=True):
    """The two backends of a program."""

    home: Backend
    other: Backend
    copied: Copied | None = None

    def at(self, value: TwoSided, home: bool, donated: bool) -> Buffer:
        """Return a value on a side, copied if it is not there; `donated`: to be written.

        What is donated is read by nobody afterwards on either side, so it may share memory.
        """
        found = value.home if home else value.other
        source = value.other if home else value.home
        if found is not None and not (donated and value.lent):
            return found
        here, there = (self.home, self.other) if home else (self.other, self.home)
        started = time.perf_counter()
        if found is not None:
            found = to_device(here, np.array(to_host(here, found)))
        elif source is None:
            assert value.array is not None, "a value is not dropped before its last use"
            found = to_device(here, value.array)
        elif value.weight:
            found = _kept_copy(source, there, here)
        else:
            array = to_host(there, source)
            value.lent = not array.flags.writeable and not donated
            # The target could not write to a view of memory that the source may only read.
            found = to_device(
                here, array.copy() if donated and not array.flags.writeable else array
            )
        if home:
            value.home = found
        else:
            value.other = found
        if self.copied is not None:
            self.copied(here, value, time.perf_counter() - started, found)
        return found

    def read(self, value: TwoSided) -> np.ndarray:
        """Return a value as an array, perhaps a view."""
        if value.other is not None:
            return to_host(self.other, value.other)
        if value.home is not None:
            return to_host(self.home, value.home)
        assert value.array is not None, "a value is somewhere"
        return value.array

    def fresh(self, value: TwoSided) -> TwoSided:
        """Return a copy in memory of its own."""
        return TwoSided(array=np.array(self.read(value)))


def dropped(values: list[TwoSided | None], numbers: Sequence[int]) -> None:
    """Forget values after their last use."""
    for number in numbers:
        values[number] = None


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
    made = to_device(target, to_host(source, buffer))
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
