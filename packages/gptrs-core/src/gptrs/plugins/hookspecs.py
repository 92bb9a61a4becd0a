"""Every extension point on one page: the entry-point groups, and the hook that plugins implement.

A distribution registers a plugin by an entry point in one of the groups below:

    [project.entry-points."gptrs.backends"]
    hello = "hello_backend.plugin:PLUGIN"

The object it names is a description (`BackendPlugin` and so on), or, for a computed description, a
module or object with a function `gptrs_describe` marked `@hookimpl` that returns one. Listing
plugins imports the modules of entry points, so these must be light.

An entry point called `*` yields several plugins of its group: it names an iterable of descriptions,
or a function of no argument that returns one. Their names are those of the descriptions.

    [project.entry-points."gptrs.models"]
    "*" = "many_kinds.plugin:KINDS"

| group | description | its factory is called with | and makes |
|---|---|---|---|
| `gptrs.backends` | `BackendPlugin` | `threads: int | None` | a `Backend` |
| `gptrs.models` | `ModelPlugin` | the settings of config.json, `Params` | a model |
| `gptrs.functionals` | `FunctionalPlugin` | what the functional is called with | its result |
| `gptrs.commands` | `CommandPlugin` | the arguments of the command line | the work of the command |
| `gptrs.trace_sinks` | `TraceSinkPlugin` | nothing | an `ExecutionTraceSink` |
| `gptrs.importers` | `ImporterPlugin` | `Path`, `Backend` | an `ImportedModel` |
| `gptrs.exporters` | `ExporterPlugin` | `OutgoingModel`, `Path` | files; returns their paths |
| `gptrs.references` | `ReferencePlugin` | `ReferencedModel` | a `Reference`, or a function |
| `gptrs.demo_models` | `DemoModelPlugin` | (no factory: a directory in a package) | |
"""

from __future__ import annotations

from typing import Final

import pluggy
from msgspec import Struct

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

PROJECT: Final = "gptrs"
"""The project name of the hooks for pluggy."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class ExtensionPoint(Struct, frozen=True):
    """A kind of plugin: its entry-point group, its name in lists, the class of its descriptions."""

    group: str
    kind: str
    description: type[PluginDescription]


EXTENSION_POINTS: Final = (
    ExtensionPoint("gptrs.backends", "backend", BackendPlugin),
    ExtensionPoint("gptrs.models", "model", ModelPlugin),
    ExtensionPoint("gptrs.functionals", "functional", FunctionalPlugin),
    ExtensionPoint("gptrs.commands", "command", CommandPlugin),
    ExtensionPoint("gptrs.trace_sinks", "trace_sink", TraceSinkPlugin),
    ExtensionPoint("gptrs.importers", "importer", ImporterPlugin),
    ExtensionPoint("gptrs.exporters", "exporter", ExporterPlugin),
    ExtensionPoint("gptrs.references", "reference", ReferencePlugin),
    ExtensionPoint("gptrs.demo_models", "demo_model", DemoModelPlugin),
)


class Hooks:
    """The hooks that gptrs calls."""

    @hookspec(firstresult=True)
    def gptrs_describe(self) -> PluginDescription:
        """Return the description of a plugin; called once, when plugins are first used."""
        ...


HOOKS: Final = pluggy.PluginManager(PROJECT)
"""The hooks of this process; a plugin is registered while it is asked."""
HOOKS.add_hookspecs(Hooks)
