"""The short form of every kit: what can be tried of an installed plugin alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from gptrs.backend.contract import Backend
from gptrs.progress import StepProgress
from gptrs_conformance.plugin_kits import (
    commands,
    exporters,
    functionals,
    importers,
    models,
    trace_sinks,
)
from gptrs_conformance.plugin_kits.subject import run_kit
from gptrs_conformance.report import Report

Run = Callable[[str, Backend, StepProgress | None], Report]


def _model(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(models.kind_alone(name), models.KIT, backend, progress)


def _functional(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(functionals.installed_functional(name), functionals.KIT, backend, progress)


def _command(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(commands.installed_command(name), commands.KIT, backend, progress)


def _trace_sink(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(trace_sinks.installed_trace_sink(name), trace_sinks.KIT, backend, progress)


def _importer(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(importers.installed_importer(name), importers.KIT, backend, progress)


def _exporter(name: str, backend: Backend, progress: StepProgress | None) -> Report:
    return run_kit(exporters.installed_exporter(name), exporters.KIT, backend, progress)


RUNS: Final[Mapping[str, Run]] = MappingProxyType(
    {
        "model": _model,
        "functional": _functional,
        "command": _command,
        "trace_sink": _trace_sink,
        "importer": _importer,
        "exporter": _exporter,
    }
)
"""By the kind of plugin, as `gptrs list plugins` has it."""


def run_plugin_kit(
    kind: str, name: str, backend: Backend, progress: StepProgress | None = None
) -> Report:
    """Run the kit of a kind on the installed plugin `name`; checks without a subject are refused.

    Raises PluginError if the plugin cannot be imported, KeyError for a kind without a kit.
    """
    return RUNS[kind](name, backend, progress)
