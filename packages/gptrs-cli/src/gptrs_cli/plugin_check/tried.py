"""The child process of `gptrs plugins check`: uses a plugin step by step, and measures the cost.

It imports little of gptrs first: modules that are already imported would cost the plugin nothing.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import typer

import gptrs
from gptrs import api
from gptrs.errors import PluginError
from gptrs.lazy_module import lazy_module
from gptrs.operating_system import peak_memory
from gptrs.plugins.descriptions import (
    BackendPlugin,
    CommandPlugin,
    DemoModelPlugin,
    ExporterPlugin,
    FunctionalPlugin,
    ImporterPlugin,
    ModelPlugin,
    PluginDescription,
    ReferencePlugin,
    TraceSinkPlugin,
)
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.manager import PluginManager, configure
from gptrs.progress import StepProgress
from gptrs_cli.command_group import command_of
from gptrs_cli.plugin_check.children import KITS, Tell, findings

if TYPE_CHECKING:
    from gptrs_runtime import conformance
else:
    conformance = lazy_module("gptrs_runtime.conformance")

_MOST_FAILURES = 5
_OURS = frozenset({"platformdirs"})
"""Packages that gptrs imports for a plugin."""


def try_plugin(asked: Mapping[str, Any], tell: Tell) -> None:
    """Send {} first, then a line for each step (import, start, conformance) until one fails.

    Each line has the findings so far and the cost of the step. The last step also names each op or
    check before it runs.
    """
    plugins = configure(asked["disabled"])
    plugins.discover()
    point = next(p.description for p in EXTENSION_POINTS if p.kind == asked["kind"])
    tell({})
    name = asked["name"]
    _step(plugins, point, name, tell, lambda: plugins.find(point, name))
    made = _step(plugins, point, name, tell, lambda: _STARTS[point](plugins, name))
    if asked["conformance"] and asked["kind"] in KITS:

        def following(done: int, total: int, subject: str) -> None:
            tell({"next": subject})

        if point is BackendPlugin:
            tell(_conformance(cast("api.backends.Backend", made), following))
        else:
            tell(_plugin_kit(asked["kind"], name, following))


def _step(
    plugins: PluginManager,
    point: type[PluginDescription],
    name: str,
    tell: Tell,
    act: Callable[[], object],
) -> object:
    """Call `act`, and send the state and cost of the plugin; None if it is not usable."""
    cost: dict[str, object] = {}
    made: object = None
    with _measured(cost):
        try:
            made = act()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too
            broken = error if isinstance(error, PluginError) else plugins.broken(point, name, error)
            cost["error"], cost["hint"] = broken.message, broken.hint
    tell({"cost": cost, "record": findings(plugins.record(point, name))})
    if "error" in cost:
        raise SystemExit(0)
    return made


def _start_functional(plugins: PluginManager, name: str) -> None:
    plugin = plugins.find(FunctionalPlugin, name)
    with gptrs.overrides({plugin.functional: plugin.implementation}):
        return


def _start_command(plugins: PluginManager, name: str) -> None:
    command = command_of(plugins.factory(CommandPlugin, name), name)
    command.get_help(typer.Context(command, info_name=name))


def _start_trace_sink(plugins: PluginManager, name: str) -> None:
    made = plugins.factory(TraceSinkPlugin, name)()
    if not isinstance(made, api.programs.ExecutionTraceSink):
        kind = type(made).__name__
        raise TypeError(f"its factory made a `{kind}`, an `ExecutionTraceSink` is needed")


_STARTS: dict[type[PluginDescription], Callable[[PluginManager, str], object]] = {
    BackendPlugin: PluginManager.get_backend,
    ModelPlugin: PluginManager.model_factory,
    FunctionalPlugin: _start_functional,
    CommandPlugin: _start_command,
    TraceSinkPlugin: _start_trace_sink,
    ImporterPlugin: lambda plugins, name: plugins.factory(ImporterPlugin, name),
    ExporterPlugin: lambda plugins, name: plugins.factory(ExporterPlugin, name),
    ReferencePlugin: lambda plugins, name: plugins.factory(ReferencePlugin, name),
    DemoModelPlugin: PluginManager.demo_model_path,
}


def _conformance(backend: api.backends.Backend, progress: StepProgress) -> dict[str, object]:
    try:
        report = api.backends.run_conformance(backend, "smoke", progress=progress)
    except api.UsageError as error:  # the kit is not installed
        return {"error": error.message, "hint": error.hint}
    return {
        "passed": report.passed,
        "failed": report.failed,
        "refused": report.refused,
        "fell_back": report.fell_back,
        "share": report.share_covered(),
        "failures": [str(failure) for failure in report.failures[:_MOST_FAILURES]],
    }


def _plugin_kit(kind: str, name: str, progress: StepProgress) -> dict[str, object]:
    """Run the kit of another kind than backends, on the default backend."""
    try:
        report = conformance.run_plugin_kit(kind, name, gptrs.get_backend(), progress)
    except api.GptrsError as error:  # the kit is not installed, or there is no backend
        return {"error": error.message, "hint": error.hint}
    return {
        "passed": report.passed,
        "failed": report.failed,
        "refused": report.refused,
        "checks": report.checks,
        "failures": [str(failure) for failure in report.failures[:_MOST_FAILURES]],
    }


@contextmanager
def _measured(cost: dict[str, object]) -> Generator[None]:
    """Scope that measures its time, imports and memory into `cost`."""
    modules, peak = set(sys.modules), peak_memory()
    started, busy = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        cost["seconds"] = time.perf_counter() - started
        # CPU time beside wall time: on a busy machine only the former is the plugin's.
        cost["cpu_seconds"] = time.process_time() - busy
        new = set(sys.modules) - modules
        cost["modules"] = len(new)
        cost["packages"] = _foreign(new)
        cost["bytes"] = peak_memory() - peak


def _foreign(modules: set[str]) -> list[str]:
    """Return the packages of other distributions among `modules`."""
    known = importlib.metadata.packages_distributions()
    tops = {name.partition(".")[0] for name in modules} - _OURS
    return sorted(top for top in tops if top in known and not top.startswith("gptrs"))
