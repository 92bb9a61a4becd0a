"""Panics of libraries in Rust: they print lines of their own, which a file must not control."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

_STDERR = 2
_lock = threading.Lock()


@contextmanager
def panics_unheard() -> Generator[None]:
    """Scope in which file descriptor 2 is kept aside; what was written to it follows afterwards.

    After an exception that is dropped: it is the panic, which the caller reports in one line. What
    other threads write meanwhile goes the same way.
    """
    with _lock:
        try:
            kept, aside = os.dup(_STDERR), _new_file()
        except OSError:  # no standard error, or no descriptor left
            yield
            return
        try:
            os.dup2(aside, _STDERR)
            try:
                yield
            finally:
                os.dup2(kept, _STDERR)
            _pass_on(aside)
        finally:
            os.close(kept)
            os.close(aside)


def _new_file() -> int:
    """Return the descriptor of an empty file without a name, in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stderr")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _pass_on(aside: int) -> None:
    size = os.lseek(aside, 0, os.SEEK_END)
    if size:
        with suppress(OSError):
            os.write(_STDERR, os.pread(aside, size, 0))
