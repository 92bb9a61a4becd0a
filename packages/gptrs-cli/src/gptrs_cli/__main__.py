"""Starts the command line as `python -m gptrs_cli`; an interrupt meanwhile shows no traceback.

Standard streams that are closed are opened first: else the next file would take their place.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from gptrs_cli.terminal.interrupts import forget_interrupt, interrupts_end_with_process

_INTERRUPTED = 130
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_IDLE_CYCLES = "20"
"""The logarithm of the cycles that idle threads of NumPy's OpenBLAS wait before they sleep.

By default they take a processor for 0.05 seconds each, from the import of NumPy on.
"""


def main() -> int:
    """Import and run the command line; returns its exit code."""
    # A start makes hundreds of thousands of objects, modules and programs; nearly all stay.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _IDLE_CYCLES)
    _open_closed_streams()
    try:
        with interrupts_end_with_process():
            return importlib.import_module("gptrs_cli.main").main()
    except KeyboardInterrupt:  # before `gptrs_cli.main.main` takes care of it
        forget_interrupt()
        return _INTERRUPTED


def _open_closed_streams() -> None:
    """Open standard streams that this process got closed, as in `gptrs ... >&-`.

    Results that cannot be written are an error, as they are where a shell closes one of its own
    commands; notes are not.
    """
    # In this order: a file that is opened takes the lowest number that is free.
    if not _is_open(0):
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if not _is_open(1):
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if not _is_open(2):
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
