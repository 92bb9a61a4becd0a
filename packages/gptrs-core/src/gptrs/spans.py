"""Pieces of work with their times, for profiles: `with span("load model"):`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):  # not a Struct: `import gptrs` needs no msgspec
    """A piece of work that ended. Spans of a thread nest; an inner one ends first."""

    name: str
    """The kind of work: "optimize", "compile kernel"."""
    detail: str
    """Name the object of the work; may be empty."""
    started: float
    """In seconds of `time.perf_counter`."""
    seconds: float
    thread: int
    """The identifier of the thread."""


_listeners: tuple[Callable[[Span], None], ...] = ()


@contextmanager
def spans_told(tell: Callable[[Span], None]) -> Generator[None]:
    """Open a scope in which `tell` receives each span of every thread; it must not fail."""
    global _listeners
    _listeners = (*_listeners, tell)
    try:
        yield
    finally:
        _listeners = tuple(each for each in _listeners if each is not tell)


class span:  # noqa: N801 - used like a function
    """Time a scope for listeners; it costs less than a microsecond without any."""

    __slots__ = ("_detail", "_name", "_started")

    def __init__(self, name: str, detail: str = "") -> None:
        self._name = name
        self._detail = detail

    def __enter__(self) -> None:
        self._started = time.perf_counter() if _listeners else 0.0

    def __exit__(self, *_: object) -> None:
        if not _listeners or not self._started:
            return
        seconds = time.perf_counter() - self._started
        made = Span(self._name, self._detail, self._started, seconds, threading.get_ident())
        for tell in _listeners:
            tell(made)
