"""Imports by name, on first use: of layers above capture, and of the passes of the optimizer.

Everything else imports downwards only. Here a tensor finds its functionals, a program its backend
and its trace sinks, a signature the active overrides, and a functional the implementations that
plugins bring. A program that is found on disk needs no passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend
    from gptrs.ir.program import Program
    from gptrs.optimizer.split import Split
    from gptrs.optimizer.stage import PassRun

Found = tuple[Callable[..., object], Callable[..., object] | None]
"""An implementation of a functional, and its `declines` predicate, if it has one."""


class ImplementationSource(Protocol):
    """Implementations of functionals by name, known before they are imported."""

    def names(self, functional: str) -> Sequence[str]:
        """Return the names of the implementations of `functional` that are usable."""
        ...

    def load(self, functional: str, name: str) -> Found | None:
        """Import an implementation; None if no plugin has it, PluginError if it is unusable."""
        ...


@cache
def functional(name: str) -> Callable[..., Any]:
    """Return the functional called `name`."""
    return getattr(import_module("gptrs.functionals"), name)


def origin_of(backend: Backend) -> str:
    """Return the backend with what brought it, for messages: "backend `x` (from x-dist 1.0)"."""
    return import_module("gptrs.plugins.manager").origin_of(backend)


def optimize(
    program: Program,
    backend: Backend,
    parameters: Sequence[bool] | None,
    share: bool,
    observe: Callable[[PassRun], None] | None,
) -> Split:
    """Return what `gptrs.capture.optimization.optimize` makes of a program."""
    module = import_module("gptrs.capture.optimization")
    return module.optimize(program, backend, parameters, share, observe)


def get_backend(name: str | None = None) -> Backend:
    """Return the backend called `name`, else that of `GPTRS_BACKEND`, else the best that works."""
    return import_module("gptrs.plugins.manager").get_backend(name)


@cache
def plugin_implementations() -> ImplementationSource:
    """Return the implementations of functionals that installed plugins bring."""
    return import_module("gptrs.plugins.functionals").PluginImplementations()


def load_trace_sinks() -> None:
    """Install the sinks that `GPTRS_TRACE_SINKS` names, unless they listen already."""
    if os.environ.get("GPTRS_TRACE_SINKS"):
        import_module("gptrs.plugins.trace_sinks").install_from_environment()


def load_signature_contexts() -> None:
    """Import what makes the active overrides a part of each signature of a jitted function."""
    import_module("gptrs.functionals.dispatch.active_overrides")
