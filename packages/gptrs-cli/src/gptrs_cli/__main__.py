"""Starts the command line as `python -m gptrs_cli`; an interrupt meanwhile shows no traceback."""

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
    try:
        with interrupts_end_with_process():
            return importlib.import_module("gptrs_cli.main").main()
    except KeyboardInterrupt:  # before `gptrs_cli.main.main` takes care of it
        forget_interrupt()
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
