"""Import code of a plugin: name who is waited for and who crashes, and keep the output open."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FunctionType
from typing import TypeVar, cast

from gptrs.errors import PluginError
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord, described

Imported = TypeVar("Imported")
PATIENCE_S = 2.0
"""An import that takes longer is named on standard error."""
_LOG = logging.getLogger("gptrs")
_STREAMS = {"stdout": 1, "stderr": 2}


def foreign_import(record: PluginRecord, load: Callable[[], Imported]) -> Imported:
    """Return what `load` returns, which imports a module of a plugin.

    After `PATIENCE_S` a warning names the plugin and how to leave it out. PluginError if it closed
    standard output or standard error, which are then opened again. An interrupt gets a note that
    names it. If it crashes the process, the traceback on standard error names it. Imports of gptrs
    itself are not watched.
    """
    if is_own(record.distribution):
        return load()
    selector = f"{record.kind}:{record.name}"
    importing = (
        f"importing the {described(record)}; to leave it out: `-p no:{selector}`,"
        f" or `GPTRS_DISABLE_PLUGINS={selector}`"
    )
    try:
        with _named_after(PATIENCE_S, importing), _kept_streams(), _crashes_told():
            return _in_frame_called(importing, load)
    except KeyboardInterrupt as interrupt:  # it may be what hangs, or what raised it
        interrupt.add_note(f"while {described(record)} was imported")
        raise


def _in_frame_called(name: str, load: Callable[[], Imported]) -> Imported:
    """Call `load` from a frame whose file tracebacks call `name`.

    After a crash no code of ours runs: names of frames are all that `faulthandler` can tell.
    """

    def frame() -> Imported:
        return load()

    code = frame.__code__.replace(co_filename=name, co_firstlineno=1, co_name="foreign_import")
    return cast("Callable[[], Imported]", FunctionType(code, {}, None, None, frame.__closure__))()


@contextmanager
def _crashes_told() -> Generator[None]:
    if faulthandler.is_enabled():
        yield
        return
    # By number, since `sys.stderr` may have none, and the plugin may put another object there.
    faulthandler.enable(_STREAMS["stderr"], all_threads=False)
    try:
        yield
    finally:
        faulthandler.disable()


@contextmanager
def _named_after(seconds: float, importing: str) -> Generator[None]:
    timer = threading.Timer(seconds, _LOG.warning, ["%s", f"still {importing}"])
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
