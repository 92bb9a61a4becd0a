"""While code of a plugin is imported: who is waited for is said, and the output stays open."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from gptrs.errors import PluginError
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord, described

PATIENCE_S = 2.0
"""An import that takes longer is named on standard error."""
_LOG = logging.getLogger("gptrs")
_STREAMS = {"stdout": 1, "stderr": 2}


@contextmanager
def foreign_import(record: PluginRecord) -> Generator[None]:
    """Scope of an import that a plugin asks for.

    After `PATIENCE_S` a warning names the plugin and how to leave it out. PluginError if it closed
    standard output or standard error, which are then opened again. An interrupt gets a note that
    names it. Imports of gptrs itself are
    not watched.
    """
    if is_own(record.distribution):
        yield
        return
    try:
        with _named_after(PATIENCE_S, record), _kept_streams():
            yield
    except KeyboardInterrupt as interrupt:  # it may be what hangs, or what raised it
        interrupt.add_note(f"while {described(record)} was imported")
        raise


@contextmanager
def _named_after(seconds: float, record: PluginRecord) -> Generator[None]:
    selector = f"{record.kind}:{record.name}"
    text = (
        f"still importing the {described(record)}; to leave it out: `-p no:{selector}`,"
        f" or `GPTRS_DISABLE_PLUGINS={selector}`"
    )
    timer = threading.Timer(seconds, _LOG.warning, ["%s", text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _kept_streams() -> Generator[None]:
    copies = {name: _copy(number) for name, number in _STREAMS.items()}
    streams = {name: getattr(sys, name) for name in _STREAMS}
    try:
        yield
    finally:
        closed = [
            name
            for name, number in _STREAMS.items()
            if _reopen(name, number, copies[name], streams[name])
        ]
        for copy in copies.values():
            if copy is not None:
                os.close(copy)
    if closed:
        raise PluginError(f"it closed `sys.{closed[0]}` when it was imported")


def _copy(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError:
        return None  # a process without this stream


def _reopen(name: str, number: int, copy: int | None, stream: object) -> bool:
    """Open a standard stream again if it was closed; return whether it was."""
    if copy is None:
        return False
    closed = not _is_open(number)
    if closed:
        os.dup2(copy, number)
    if isinstance(stream, io.TextIOBase) and stream.closed:
        closed = True
        binary = io.FileIO(number, "w", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(binary),
            stream.encoding,
            stream.errors,
            line_buffering=binary.isatty(),
        )
        setattr(sys, name, text)
    return closed


def _is_open(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return True
    return False
