"""Starts the command line as `python -m gptrs_cli`; an interrupt meanwhile shows no traceback."""

from __future__ import annotations

import importlib
import sys

from gptrs_cli.terminal.interrupts import forget_interrupt

_INTERRUPTED = 130


def main() -> int:
    """Import and run the command line; returns its exit code."""
    try:
        return importlib.import_module("gptrs_cli.main").main()
    except KeyboardInterrupt:  # before `gptrs_cli.main.main` takes care of it
        forget_interrupt()
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
