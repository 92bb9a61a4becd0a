"""Reliable Ctrl-C: not lost in a callback, not reported as an error, not fatal at exit.

This holds for repeated presses, too: cleaning up after an interrupt is not interrupted again at
once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.02
_ECHO_S = 0.5
"""Seconds: an interrupt this soon after another is its echo, since scopes are still closing."""


@contextmanager
def interrupts_arrive() -> Generator[None]:
    """Open a scope that every interrupt leaves as KeyboardInterrupt.

    Python prints and drops a KeyboardInterrupt raised in a destructor or in a callback from C;
    compilers run many of these. The scope sends the signal again `_AGAIN_S` later, and turns any
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


@contextmanager
def interrupts_end_with_process() -> Generator[None]:
    """Open the scope of a process: interrupts are raised inside, and ignored afterwards.

    Thus the process keeps its exit code even if a signal arrives while it ends.
    """
    interrupts = _Interrupts()
    ours = _is_ours(signal.getsignal(signal.SIGINT))
    if ours:
        signal.signal(signal.SIGINT, interrupts.strike)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def forget_interrupt() -> None:
    """Clear CPython's record of an unhandled interrupt, so that our exit code is used.

    CPython records an interrupt that leaves code compiled from a string (libraries have some), and
    kills itself by the signal at exit even if the interrupt was caught. `exec` clears the record.
    """
    exec("")


class _Interrupts:
    def __init__(self) -> None:
        self.struck = False
        self._last = 0.0
        self._again = False
        self._report = sys.unraisablehook
        self._timer: threading.Timer | None = None

    @contextmanager
    def watched(self) -> Generator[None]:
        handler = signal.getsignal(signal.SIGINT)
        ours = _is_ours(handler)
        if ours:
            signal.signal(signal.SIGINT, self.strike)
        sys.unraisablehook = self._dropped
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            sys.unraisablehook = self._report
            if ours:
                outer = _whose(handler)
                if outer is not None:
                    # Handed to the scope around: the echo of this interrupt may arrive while that
                    # one closes.
                    outer.struck, outer._last = self.struck, self._last
                signal.signal(signal.SIGINT, handler)

    def strike(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, unless this is the echo of a recent one."""
        now = time.monotonic()
        # Terminals, `timeout` and make all pass the signal on, so one press may arrive several
        # times.
        if self.struck and now - self._last < _ECHO_S and not self._again:
            return
        self.struck, self._last, self._again = True, now, False
        signal.default_int_handler(number, frame)

    def _dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._again = True
            # Delayed, or the signal would arrive within this same callback.
            self._timer = threading.Timer(_AGAIN_S, os.kill, [os.getpid(), signal.SIGINT])
            self._timer.daemon = True
            self._timer.start()
        elif not self.struck:
            self._report(unraisable)


def _is_ours(handler: object) -> bool:
    """Return whether a handler may be replaced: Python's default or one of this module.

    Others ignore interrupts or belong to the program. Only the main thread can set handlers.
    """
    known = handler is signal.default_int_handler or _whose(handler) is not None
    return known and threading.current_thread() is threading.main_thread()


def _whose(handler: object) -> _Interrupts | None:
    """Return the object of this module that a handler is bound to; None for other handlers."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Interrupts) else None
