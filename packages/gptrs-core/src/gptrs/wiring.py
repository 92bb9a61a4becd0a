"""Fills the ports of the lower layers with functions of the layers above them.

Each module is imported when a function of it is first called, so `import gptrs` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from gptrs import ports
from gptrs.capture import ports as capture_ports
from gptrs.lazy_module import lazy_module

if TYPE_CHECKING:
    import gptrs.functionals as math
    from gptrs.backend.contract import Backend
    from gptrs.capture import optimization
    from gptrs.functionals.dispatch import active_overrides
    from gptrs.ir import printer
    from gptrs.ir.program import Program
    from gptrs.optimizer.passes import cleanup
    from gptrs.optimizer.pipeline import PassRun
    from gptrs.optimizer.split import Split
    from gptrs.plugins import functionals as plugin_functionals
    from gptrs.plugins import manager, trace_sinks
    from gptrs_observe.programs.picture import svg as pictures
else:
    math = lazy_module("gptrs.functionals")
    optimization = lazy_module("gptrs.capture.optimization")
    active_overrides = lazy_module("gptrs.functionals.dispatch.active_overrides")
    plugin_functionals = lazy_module("gptrs.plugins.functionals")
    printer = lazy_module("gptrs.ir.printer")
    cleanup = lazy_module("gptrs.optimizer.passes.cleanup")
    manager = lazy_module("gptrs.plugins.manager")
    trace_sinks = lazy_module("gptrs.plugins.trace_sinks")
    pictures = lazy_module("gptrs_observe.programs.picture.svg")


@ports.program_text.fill
def program_text(program: object) -> str:
    """Return a program as PTIR text."""
    return printer.print_program(cast("Program", program))


@ports.expanded.fill
def expanded(program: object) -> object:
    """Return a program whose composites are inlined."""
    return cleanup.Inlining(calls=False).apply(cast("Program", program))


@ports.program_picture.fill
def program_picture(program: object) -> str | None:
    """Return the picture that gptrs-observe draws; None if it is not installed."""
    if find_spec("gptrs_observe") is None:
        return None
    return pictures.notebook_picture(cast("Program", program))


@capture_ports.functional.fill
@cache
def functional(name: str) -> Callable[..., Any]:
    """Return the functional called `name`."""
    return getattr(math, name)


@capture_ports.origin_of.fill
def origin_of(backend: Backend) -> str:
    """Return the backend with its origin."""
    return manager.origin_of(backend)


@capture_ports.optimize.fill
def optimize(
    program: Program,
    backend: Backend,
    parameters: Sequence[bool] | None,
    share: bool,
    observe: Callable[[PassRun], None] | None,
) -> Split:
    """Return the optimized program, split where its parameters can be folded."""
    return optimization.optimize(program, backend, parameters, share, observe)


@capture_ports.get_backend.fill
def get_backend(name: str | None) -> Backend:
    """Return a backend of the plugins."""
    return manager.backend_of(name)


@capture_ports.plugin_implementations.fill
@cache
def plugin_implementations() -> capture_ports.ImplementationSource:
    """Return the implementations of functionals that installed plugins provide."""
    return plugin_functionals.PluginImplementations()


@capture_ports.load_trace_sinks.fill
def load_trace_sinks() -> None:
    """Install the trace sinks that the environment names; import nothing if there are none."""
    if os.environ.get("GPTRS_TRACE_SINKS"):
        trace_sinks.install_from_environment()


@capture_ports.load_signature_contexts.fill
def load_signature_contexts() -> None:
    """Import the active overrides, which become a part of each signature."""
    _ = active_overrides.entered  # an attribute imports the module
