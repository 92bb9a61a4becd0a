"""Reliable Ctrl-C: neither lost in a callback, nor reported as an error, nor fatal at exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.02


@contextmanager
def interrupts_arrive() -> Generator[None]:
    """Open a scope that an interrupt always leaves as KeyboardInterrupt.

    Python prints and drops a KeyboardInterrupt raised in a destructor or in a callback from C, of
    which compilers have many. This scope sends the signal again `_AGAIN_S` later, and turns any
    error after an interrupt into KeyboardInterrupt.
    """
    interrupts = _Interrupts()
    try:
        with interrupts.watched():
            yield
    except Exception as error:
        if interrupts.struck:
            raise KeyboardInterrupt from error
        raise
    finally:
        forget_interrupt()


def forget_interrupt() -> None:
    """Clear CPython's record of an unhandled interrupt, so that our exit code is used.

    CPython records an interrupt that leaves code compiled from a string, as libraries have it, and
    kills itself by the signal at exit although the interrupt was caught. `exec` clears the record.
    """
    exec("")


class _Interrupts:
    def __init__(self) -> None:
        self.struck = False
        self._report = sys.unraisablehook
        self._timer: threading.Timer | None = None

    @contextmanager
    def watched(self) -> Generator[None]:
        handler = signal.getsignal(signal.SIGINT)
        # Keep a handler that is not Python's own: it ignores interrupts or belongs to another.
        ours = handler is signal.default_int_handler and _in_main_thread()
        if ours:
            signal.signal(signal.SIGINT, self._strike)
        sys.unraisablehook = self._dropped
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            sys.unraisablehook = self._report
            if ours:
                signal.signal(signal.SIGINT, handler)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        self.struck = True
        signal.default_int_handler(number, frame)

    def _dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # After a delay, or the signal would strike within this very callback.
            self._timer = threading.Timer(_AGAIN_S, os.kill, [os.getpid(), signal.SIGINT])
            self._timer.daemon = True
            self._timer.start()
        elif not self.struck:
            self._report(unraisable)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
