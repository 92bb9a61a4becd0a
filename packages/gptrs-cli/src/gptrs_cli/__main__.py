"""Entry point of `python -m gptrs_cli`; an interrupt while it starts shows no traceback.

Closed standard streams are opened first: otherwise the next file would get their descriptors.
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
"""Log2 of the cycles that idle threads of NumPy's OpenBLAS spin before they sleep. By default, each
keeps a processor busy for 0.05 seconds after NumPy is imported.
"""


def main() -> int:
    """Import and run the command line; return its exit code."""
    # A start makes hundreds of thousands of objects (modules, programs) and nearly all of them live
    # to the end: collecting earlier only costs time.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _IDLE_CYCLES)
    _open_closed_streams()
    try:
        with interrupts_end_with_process():
            return importlib.import_module("gptrs_cli.main").main()
    except KeyboardInterrupt:  # `gptrs_cli.main.main` handles it from here on
        forget_interrupt()
        return _INTERRUPTED
    finally:
        # The process ends: otherwise Python would search all that is left for cycles, for 0.1 s.
        gc.freeze()


def _open_closed_streams() -> None:
    """Open the standard streams that were closed by the caller, as in `gptrs ... >&-`.

    Results that cannot be written remain an error, as in commands of the shell; notes are dropped.
    """
    # The order matters: an opened file gets the lowest free descriptor.
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
