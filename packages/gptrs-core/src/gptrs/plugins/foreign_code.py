"""Imports of plugin code: names the plugin that hangs or crashes, and keeps the output open."""

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
from typing import TextIO, TypeVar, cast

from gptrs.errors import PluginError
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord, described

Imported = TypeVar("Imported")
PATIENCE_S = 2.0
"""Seconds after which a slow import is named on standard error."""
_LOG = logging.getLogger("gptrs")
_STREAMS = {"stdout": 1, "stderr": 2}


def foreign_import(
    record: PluginRecord, load: Callable[[], Imported], doing: str = "importing"
) -> Imported:
    """Call `load`, which imports a module of a plugin or calls its factory; return its result.

    After `PATIENCE_S`, a warning names the plugin and how to exclude it. What it prints goes to
    standard error, with a warning: standard output is for data. A warning names a thread that it
    leaves and that keeps the process from ending. PluginError if it closed
    standard output or standard error, which are then reopened. Interrupts get a note with its name.
    If it crashes the process, the traceback on standard error names it. Imports of gptrs itself are
    not watched.
    """
    if is_own(record.distribution):
        return load()
    selector = f"{record.kind}:{record.name}"
    importing = (
        f"{doing} the {described(record)}; to leave it out: `-p no:{selector}`,"
        f" or `GPTRS_DISABLE_PLUGINS={selector}`"
    )
    try:
        with (
            _named_after(PATIENCE_S, importing),
            _kept_streams(),
            _crashes_told(),
            _printed_to_stderr(f"the {described(record)}"),
            _threads_told(f"the {described(record)}"),
        ):
            return _in_frame_called(importing, load)
    except KeyboardInterrupt as interrupt:  # the plugin may have hung, or raised it itself
        interrupt.add_note(f"while {described(record)} was imported")
        raise


def _in_frame_called(name: str, load: Callable[[], Imported]) -> Imported:
    """Call `load` from a frame that tracebacks show as the file `name`.

    After a crash, none of our code runs: `faulthandler` can only print names of frames.
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
    # By number, since `sys.stderr` may lack a descriptor, and the plugin may replace it.
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


class _Apart:
    """Standard output while a plugin is imported: what this thread prints goes to standard error.

    The plugin may keep it, and write to it later, when it is as it was.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread: int | None = threading.get_ident()
        self.printed = False

    def write(self, text: str) -> int:
        """Write to standard error where the plugin prints, else to standard output."""
        # Other threads may print results meanwhile.
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self.printed = True
        return sys.stderr.write(text)

    def end(self) -> None:
        """Be standard output from now on."""
        self._thread = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def _printed_to_stderr(plugin: str) -> Generator[None]:
    before = sys.stdout
    if before is None:  # a process without standard output
        yield
        return
    apart = _Apart(before)
    sys.stdout = cast("TextIO", apart)
    try:
        yield
    finally:
        apart.end()
        if sys.stdout is cast("TextIO", apart):
            sys.stdout = before
        if apart.printed:
            _LOG.warning("%s prints when it is imported; that is on standard error", plugin)


@contextmanager
def _threads_told(plugin: str) -> Generator[None]:
    before = {*threading.enumerate()}
    try:
        yield
    finally:
        started = (each for each in threading.enumerate() if each not in before)
        for thread in started:
            if not thread.daemon:
                left = f"the thread `{thread.name}`, which the end of the process waits for"
                _LOG.warning("%s started %s: make it a daemon", plugin, left)


@contextmanager
def _kept_streams() -> Generator[None]:
    """Scope that leaves standard output and error open; PluginError if one was closed."""
    # A process may lack a stream from the start; then there is no copy.
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
        # Line-buffered on a terminal, as in Python.
        setattr(sys, name, os.fdopen(number, "w", -1, stream.encoding, stream.errors, None, False))
        return True
    return still is None


def _copy(descriptor: int) -> int | None:
    """Return a duplicate of a descriptor; None if it is not open."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None
