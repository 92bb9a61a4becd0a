"""Tensors that are told out of functions while they are captured: more results of their steps."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from gptrs.capture.tensor import Tensor

_numbers = itertools.count(1)
_told: ContextVar[dict[str, Tensor] | None] = ContextVar("gptrs_told", default=None)
"""The records of the open capture."""


class Recording:
    """Takes the tensors that code tells while it is captured, and has their values after each run.

    It is a part of the signature of jitted functions: a step is captured and compiled once for it,
    and replayed with it.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.found: dict[str, Tensor] = {}
        """The tensors of the last run, in the order in which they were told."""

    def tell(self, name: str, value: Tensor) -> None:
        """Record a tensor; a name that was told before gets a number, `name@1`."""
        told = _told.get()
        target = self.found if told is None else told  # in eager mode there is no capture
        key, again = name, 0
        while key in target:
            again += 1
            key = f"{name}@{again}"
        target[key] = value

    def deliver(self, values: Mapping[str, Tensor]) -> None:
        """Take what was told in a run."""
        self.found.update(values)


_active: ContextVar[Recording | None] = ContextVar("gptrs_recording", default=None)


def active_recording() -> Recording | None:
    """Return the recording that is in force, if any."""
    return _active.get()


def recording_key() -> Hashable:
    """Return what tells recordings apart in a signature; () without one."""
    active = _active.get()
    return () if active is None else active.number


@contextmanager
def recording(wanted: Recording) -> Generator[None]:
    """Scope in which `wanted` takes what is told."""
    token = _active.set(wanted)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def telling() -> Generator[dict[str, Tensor]]:
    """Scope of a capture: yields the tensors that are told in it."""
    told: dict[str, Tensor] = {}
    token = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(token)
