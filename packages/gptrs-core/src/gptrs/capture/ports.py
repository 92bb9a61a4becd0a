"""The ports of capture: functions that it needs from layers above and from the optimizer. Through
them a tensor finds its functionals, a program its backend and trace sinks, a signature the active
overrides, and a functional the implementations of plugins. Programs found on disk need no passes,
so the optimizer is imported only on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gptrs.ports import Port

if TYPE_CHECKING:
    from gptrs.backend.contract import Backend
    from gptrs.ir.program import Program
    from gptrs.optimizer.pipeline import PassRun
    from gptrs.optimizer.split import Split

Found = tuple[Callable[..., object], Callable[..., object] | None]
"""An implementation of a functional, and its `declines` predicate, if it has one."""


class ImplementationSource(Protocol):
    """Implementations of functionals by name, known before they are imported."""

    def names(self, functional: str) -> Sequence[str]:
        """Return the names of the usable implementations of `functional`."""
        ...

    def load(self, functional: str, name: str) -> Found | None:
        """Import an implementation; None if no plugin has it, PluginError if it is unusable."""
        ...


functional: Port[[str], Callable[..., Any]] = Port()
"""The functional called `name`."""
origin_of: Port[[Backend], str] = Port()
"""The backend with its origin, for messages: "backend `x` (from x-dist 1.0)"."""
optimize: Port[
    [Program, Backend, Sequence[bool] | None, bool, Callable[[PassRun], None] | None], Split
] = Port()
"""Optimize a program, as `gptrs.capture.optimization.optimize` does."""
get_backend: Port[[str | None], Backend] = Port()
"""The backend called `name`; for None, the one in `GPTRS_BACKEND`, else the best that works."""
plugin_implementations: Port[[], ImplementationSource] = Port()
"""The implementations of functionals that installed plugins provide."""
load_trace_sinks: Port[[], None] = Port()
"""Install the sinks that `GPTRS_TRACE_SINKS` names, unless they listen already."""
load_signature_contexts: Port[[], None] = Port()
"""Import the module that adds the active overrides to every signature of a jitted function."""
