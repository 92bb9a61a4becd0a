"""Which backend runs a graph whose leaves do not say: the innermost scope's, else the default."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from gptrs.capture.ports import get_backend

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend

_scope: ContextVar[Backend | None] = ContextVar("gptrs_backend", default=None)


@contextmanager
def use_backend(backend: Backend | str) -> Generator[Backend]:
    """Open a scope in which graphs without a backend of their own run on `backend`, or on its name.

    PluginError for a name that no usable backend has.
    """
    if isinstance(backend, str):
        backend = get_backend(backend)
    token = _scope.set(backend)
    try:
        yield backend
    finally:
        _scope.reset(token)


def scoped_backend() -> Backend | None:
    """Return the backend of the innermost scope, None outside of any."""
    return _scope.get()


def chosen_backend() -> Backend:
    """Return the backend of the innermost scope, else the default one."""
    backend = _scope.get()
    return get_backend(None) if backend is None else backend
