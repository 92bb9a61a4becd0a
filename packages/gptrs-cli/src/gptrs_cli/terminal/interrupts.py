"""Makes Ctrl-C arrive: neither lost in a callback, nor taken for an error, nor fatal in the end."""

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
    """Scope that an interrupt always leaves as KeyboardInterrupt.

    Python prints and drops one that strikes in a destructor or in a callback from C, of which
    compilers have many. Here it strikes again soon after, and errors that come of it meanwhile
    count as the interrupt that they are.
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
    """Let an interrupt that was caught end in our exit code.

    CPython notes an interrupt that leaves code compiled from a string, as libraries do, and kills
    itself by the signal at its end although the interrupt was caught; the next such code clears it.
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
        # Where interrupts are ignored, or are somebody else's to handle, they stay so.
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
            # Later, so that it does not strike within this very callback.
            self._timer = threading.Timer(_AGAIN_S, os.kill, [os.getpid(), signal.SIGINT])
            self._timer.daemon = True
            self._timer.start()
        elif not self.struck:
            self._report(unraisable)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
