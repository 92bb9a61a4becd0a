"""Standard error: notes, warnings and errors; what a terminal may be sent."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TextIO

import typer

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Step = Callable[[int, int, str], None]
"""Called with the number of steps done, of all steps, and the name of the next one."""


def has_colors(stream: TextIO) -> bool:
    """Whether escape codes may be written: to a terminal, unless NO_COLOR or TERM forbid it."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads the stream on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """`text` with control characters, newline and tab apart, escaped: they steer a terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def note(text: str) -> None:
    """Tell the user something that is no result."""
    _write_line(printable(text))


def note_below(text: str) -> None:
    """Tell the user something below the results, which go to another stream, printed before."""
    sys.stdout.flush()
    note(text)


def complain(kind: str, text: str) -> None:
    """Print `kind: text`, where `kind` is "error" or "warning" and stands out on a terminal."""
    color = "red" if kind == "error" else "yellow"
    label = f"{kind}:"
    shown = typer.style(label, fg=color, bold=True) if has_colors(sys.stderr) else label
    _write_line(f"{shown} {printable(text)}")


@contextmanager
def warnings_as_lines() -> Generator[None]:
    """Scope in which what `warnings` and the logger `gptrs` report is shown as one line each."""
    logger, handler = logging.getLogger("gptrs"), _LineHandler(logging.INFO)
    propagated, logger.propagate = logger.propagate, False
    level = logger.level
    logger.setLevel(logging.INFO)
    shown, warnings.showwarning = warnings.showwarning, _show_warning
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
        logger.setLevel(level)
        warnings.showwarning = shown


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    complain("warning", " ".join(str(message).split()))


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if record.levelno < logging.WARNING:
            note(text)
        else:
            complain("warning" if record.levelno < logging.ERROR else "error", text)


def rich_output() -> Any:
    """Import what draws on terminals; typed in `terminal.rich_output`."""
    return importlib.import_module("gptrs_cli.terminal.rich_output")


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
