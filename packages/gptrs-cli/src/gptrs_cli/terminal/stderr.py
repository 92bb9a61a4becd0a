"""What goes to standard error: notes, errors, and a sign of life while something takes long."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

import typer

_ERASE_LINE = "\r\x1b[K"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


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


class Waiting:
    """Shows on a terminal what is being waited for and for how long, once that is noticeable.

    Use as a context manager; `stop` ends it early and may be called again.
    """

    _delay_s = 0.4
    _interval_s = 0.1
    _active: Waiting | None = None

    def __init__(self, what: str) -> None:
        self._what = what
        self._details = ""
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Waiting:
        if is_terminal(sys.stderr):
            Waiting._active = self
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def now(self, what: str) -> None:
        """Name what is being waited for from now on."""
        self._what = what
        self._details = ""
        self._started = time.monotonic()

    def add(self, details: str) -> None:
        """Say more about what is being waited for, instead of what was said before."""
        self._details = f", {details}"

    def stop(self) -> None:
        """Erase the line."""
        if Waiting._active is self:
            Waiting._active = None
            self._stopped.set()
            self._thread.join()
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()

    def _show(self) -> None:
        frame = 0
        while not self._stopped.wait(self._interval_s):
            seconds = time.monotonic() - self._started
            if seconds >= self._delay_s:
                mark = _FRAMES[frame % len(_FRAMES)]
                sys.stderr.write(f"{_ERASE_LINE}{mark} {self._what}{self._details} {seconds:.0f} s")
                sys.stderr.flush()
                frame += 1

    @classmethod
    def shown(cls) -> bool:
        """Whether the cursor stands in a line that is about to be erased."""
        return cls._active is not None


def _write_line(text: str) -> None:
    start = _ERASE_LINE if Waiting.shown() else ""
    sys.stderr.write(f"{start}{text}\n")
    sys.stderr.flush()
