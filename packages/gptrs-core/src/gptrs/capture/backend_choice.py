"""Which backend runs a graph whose leaves do not say: the innermost scope's, else the default."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from gptrs.errors import BackendError

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend

_scope: ContextVar[Backend | None] = ContextVar("gptrs_backend", default=None)
_default: list[Callable[[], Backend]] = []


def set_default_backend(resolve: Callable[[], Backend]) -> None:
    """Install the function that names the default backend; asked only when one is needed."""
    _default[:] = [resolve]


@contextmanager
def use_backend(backend: Backend) -> Generator[Backend]:
    """Scope in which graphs without a backend of their own run on `backend`."""
    token = _scope.set(backend)
    try:
        yield backend
    finally:
        _scope.reset(token)


def scoped_backend() -> Backend | None:
    """The backend of the innermost scope, None outside of any."""
    return _scope.get()


def chosen_backend() -> Backend:
    """The backend of the innermost scope, else the default one."""
    backend = _scope.get()
    if backend is not None:
        return backend
    if not _default:
        raise BackendError("no backend was chosen", hint="enter `use_backend(...)`")
    return _default[0]()
