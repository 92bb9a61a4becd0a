"""A lack of memory while a plugin is loaded is told as one: nothing is wrong with the plugin."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

_SIGNS = ("failed to map segment", "cannot allocate memory", "out of memory")
"""How the dynamic linker and libraries say it, in an ImportError or OSError."""


@contextmanager
def memory_is_there(what: str) -> Generator[None]:
    """Scope in which errors that come of a lack of memory are raised as MemoryError.

    The next best backend would find no memory either, or hang: OpenBLAS waits for threads that it
    could not start.
    """
    try:
        yield
    except Exception as error:
        if not _lacks_memory(error):
            raise
        raise MemoryError(f"no memory is left to load {what}") from error


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came of, is a lack of memory."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, ImportError | OSError) and any(
            sign in str(error).lower() for sign in _SIGNS
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
