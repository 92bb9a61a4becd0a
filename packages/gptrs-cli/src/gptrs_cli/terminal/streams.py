"""The standard streams: complete lines, closed pipes, and terminals that are not UTF-8."""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, cast

import typer
from typing_extensions import Buffer, override

from gptrs.quoting import clipped

_MOST_FRAMES: Final = 6
"""Most frames of a traceback that a line shows."""
_MOST_SAID: Final = 200
"""Most characters of an error's text: libraries may quote whole inputs."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def has_colors(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal, and neither NO_COLOR nor TERM forbids colors."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Return `text` with control characters escaped, except newline and tab."""
    # Names in files and texts of models may hold escape sequences, which would move the cursor,
    # change the title or fill the clipboard of a terminal.
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_line(text: str) -> str:
    """Return `text` on one line, all control characters escaped: names may have newlines, too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def note(text: str) -> None:
    """Print `text`, which is no result, on standard error."""
    _write_line(printable(text))


def note_below(text: str) -> None:
    """Flush standard output first, so that the note appears below the results."""
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
    """Open a scope in which each warning and each record of the logger `gptrs` is one line."""
    logger, handler = logging.getLogger("gptrs"), _LineHandler(logging.INFO)
    # Otherwise a root handler of a library prints each record once more.
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
    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text}: {_told(error)}"
        if record.levelno < logging.WARNING:
            note(text)
        else:
            complain("warning" if record.levelno < logging.ERROR else "error", text)


def _told(error: BaseException) -> str:
    """Return the kind of an error, its text, and the frames that raised it, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    calls = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames)]
    said = clipped(" ".join(str(error).split()), _MOST_SAID)
    raised = f" (at {', '.join(calls)})" if calls else ""
    return f"{type(error).__name__}{': ' if said else ''}{said}{raised}"


def rich_output() -> Any:
    """Import and return `terminal.rich_output`; late, because rich is slow to import."""
    return importlib.import_module("gptrs_cli.terminal.rich_output")


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# Reliable standard output: every character can be encoded, and every write is complete.


def make_stdout_reliable() -> None:
    """Replace characters that the encoding lacks by question marks, and make writes complete.

    With `PYTHONUNBUFFERED`, Python drops the rest of a short write: on a full disk, the last line
    would be torn without an error. Errors of this stream are recorded, too.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="replace")
    below: object = cast("TextIO", stream).buffer
    if isinstance(below, io.RawIOBase):
        raw = cast("BinaryIO", _WholeWrites(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(raw, stream.encoding, "replace", write_through=True)
    # Not isinstance: pytest and notebooks replace the stream, and theirs must stay.
    elif type(_raw(below)) is io.FileIO:
        stream.flush()
        buffered = io.BufferedWriter(_WholeWrites(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            buffered, stream.encoding, "replace", line_buffering=stream.line_buffering
        )


def drop_lost_notes() -> None:
    """Drop what standard error cannot take: a full disk below a log ends no command."""
    stream = sys.stderr
    below: object = getattr(stream, "buffer", None)
    is_buffered = type(_raw(below)) is io.FileIO
    if isinstance(stream, io.TextIOWrapper) and (is_buffered or type(below) is io.FileIO):
        stream.flush()
        raw = _LossyFile(stream.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw) if is_buffered else cast("BinaryIO", raw),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=not is_buffered,
        )


def is_of_stdout(error: OSError) -> bool:
    """Return whether an error came from writing to standard output."""
    below: object = getattr(sys.stdout, "buffer", None)
    raw = _raw(below) or below
    return isinstance(raw, _WholeWrites) and raw.failed == error.errno


def _raw(below: object) -> object:
    """Return the file below a buffer; None if there is no buffer."""
    return getattr(below, "raw", None)


class _WholeWrites(io.FileIO):
    """A file that writes everything before `write` returns.

    `io.BufferedWriter` would, too, but even a buffer of one byte holds back a lone newline.
    """

    failed: int | None = None
    """The errno of the last write that failed."""

    @override
    def write(self, data: Buffer, /) -> int:
        # Without copies: the rest of a short write is a view.
        left = memoryview(data).cast("B")
        size = left.nbytes
        while left.nbytes:
            try:
                taken = super().write(left)
            except OSError as error:
                self.failed = error.errno
                raise
            if taken is None:  # pyright: ignore[reportUnnecessaryComparison]  # a full pipe
                select.select([], [self], [])
            else:
                left = left[taken:]
        return size


class _LossyFile(_WholeWrites):
    """A file whose writes never fail."""

    @override
    def write(self, data: Buffer, /) -> int:
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes
