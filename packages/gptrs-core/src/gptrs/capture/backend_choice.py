"""Which backend runs a graph whose leaves do not say: the innermost scope's, else the default."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from gptrs.backend.contract import Backend, required_backend
from gptrs.capture.ports import get_backend

_scope: ContextVar[Backend | None] = ContextVar("gptrs_backend", default=None)


@contextmanager
def use_backend(backend: Backend | str) -> Generator[Backend]:
    """Open a scope in which graphs without a backend of their own run on `backend`, or on its name.

    PluginError for a name that no usable backend has, UsageError for what is no backend.
    """
    made = get_backend(backend) if isinstance(backend, str) else required_backend(backend)
    token = _scope.set(made)
    try:
        yield made
    finally:
        _scope.reset(token)


def scoped_backend() -> Backend | None:
    """Return the backend of the innermost scope, None outside of any."""
    return _scope.get()


def chosen_backend() -> Backend:
    """Return the backend of the innermost scope, else the default one."""
    backend = _scope.get()
    return get_backend(None) if backend is None else backend
