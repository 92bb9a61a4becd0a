"""The short form of every kit: what can be tried of an installed plugin alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from gptrs.backend.contract import Backend
from gptrs.progress import StepProgress
from gptrs_conformance.plugin_kits import (
    commands,
    exporters,
    functionals,
    importers,
    model_subject,
    models,
    references,
    trace_sinks,
)
from gptrs_conformance.plugin_kits.subject import KitCheck, run_kit
from gptrs_conformance.report import Report

_KITS: Final[Mapping[str, tuple[Callable[[str], Any], Sequence[KitCheck[Any]]]]] = MappingProxyType(
    {
        "model": (model_subject.kind_alone, models.KIT),
        "functional": (functionals.installed_functional, functionals.KIT),
        "command": (commands.installed_command, commands.KIT),
        "trace_sink": (trace_sinks.installed_trace_sink, trace_sinks.KIT),
        "importer": (importers.installed_importer, importers.KIT),
        "reference": (references.installed_reference, references.KIT),
        "exporter": (exporters.installed_exporter, exporters.KIT),
    }
)
"""For each kind of plugin, as `gptrs list plugins` has it: its subject by name, and its kit."""


def run_plugin_kit(
    kind: str, name: str, backend: Backend, progress: StepProgress | None = None
) -> Report:
    """Run the kit of a kind on the installed plugin `name`; checks without a subject are refused.

    Raises PluginError if the plugin cannot be imported, KeyError for a kind without a kit.
    """
    subject, kit = _KITS[kind]
    return run_kit(subject(name), kit, backend, progress)
