"""Import code of a plugin: name who is waited for and who crashes, and keep the output open."""

from __future__ import annotations

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
    """Scope after which standard output and error are open; PluginError if one was closed."""
    # A process may be without a stream from the beginning: then there is no copy of it.
    copies = ((name, getattr(sys, name), _copy(number)) for name, number in _STREAMS.items())
    kept = [(name, stream, copy) for name, stream, copy in copies if copy is not None]
    try:
        yield
    finally:
        closed = [name for name, stream, copy in kept if _reopened(name, stream, copy)]
        for _, _, copy in kept:
            os.close(copy)
    if closed:
        raise PluginError(f"it closed `sys.{closed[0]}` when it was imported")


def _reopened(name: str, stream: object, copy: int) -> bool:
    """Open a standard stream again if it was closed; return whether it was."""
    number = _STREAMS[name]
    still = _copy(number)
    if still is None:
        os.dup2(copy, number)
    else:
        os.close(still)
    if isinstance(stream, io.TextIOBase) and stream.closed:
        # Line by line on a terminal, as Python opens it.
        setattr(sys, name, os.fdopen(number, "w", -1, stream.encoding, stream.errors, None, False))
        return True
    return still is None


def _copy(descriptor: int) -> int | None:
    """Return another descriptor of the same file, None for one that is not open."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None
