"""Tells which programs are being compiled, for commands that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from typing_extensions import override

from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing


@contextmanager
def compilations_told(tell: Callable[[str], None]) -> Generator[None]:
    """Open a scope in which `tell` gets the origin and reason of each program to be compiled."""
    with tracing(_Telling(tell)):
        yield


class _Telling(ExecutionTraceSink):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    @override
    def before_program(self, event: CompileStart) -> None:
        self._tell(f"compiling `{event.origin}` ({event.reason})")
