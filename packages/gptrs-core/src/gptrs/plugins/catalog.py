"""The catalog of installed plugins: what is there, in which state, and how to look one up."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

import pluggy

from gptrs.errors import GptrsError, PluginError
from gptrs.plugins.descriptions import FactoryPlugin, PluginDescription
from gptrs.plugins.discovery import Plugin, discover, known_names
from gptrs.plugins.hookspecs import EXTENSION_POINTS, PROJECT, Hooks
from gptrs.plugins.references import load_reference
from gptrs.plugins.selection import Selection
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs.quoting import quoted

Description = TypeVar("Description", bound=PluginDescription)
Factory = TypeVar("Factory", bound=FactoryPlugin)

_LOG = logging.getLogger("gptrs")
_KINDS = {point.description: point.kind for point in EXTENSION_POINTS}
_UNMATCHED = "no plugin or distribution is called `%s`, the name selects nothing"
_LONGEST_COMPARED = 100
_PROBLEMS = (PluginState.DUPLICATE, PluginState.INCOMPATIBLE, PluginState.BROKEN)


class PluginCatalog:
    """The plugins that `selection` wants, discovered when first asked for; used from any thread.

    A strict selection makes every access raise PluginError while some plugin is broken,
    incompatible or a duplicate, or a name in the selection fits none.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._plugins: list[Plugin] | None = None
        self._hooks = pluggy.PluginManager(PROJECT)
        self._lock = threading.RLock()

    def discover(self) -> None:
        """Read the descriptions now rather than on first use; a second call does nothing."""
        self._discovered()

    def records(self, point: type[PluginDescription] | None = None) -> list[PluginRecord]:
        """All plugins, or those described by `point`, by kind, name and distribution."""
        records = [plugin.record for plugin in self._discovered()]
        return [r for r in records if point is None or r.kind == _KINDS[point]]

    def described(self, point: type[Description]) -> list[tuple[PluginRecord, Description | None]]:
        """All plugins of a kind, also unusable ones, and what those that could be read describe."""
        return [
            (plugin.record, cast("Description | None", plugin.description))
            for plugin in self._discovered()
            if plugin.record.kind == _KINDS[point]
        ]

    def descriptions(self, point: type[Description]) -> list[Description]:
        """The usable plugins described by `point`, by name."""
        usable = {record.name for record in self.records(point) if record.state.usable}
        described = cast("list[PluginDescription]", self._hooks.hook.gptrs_describe())
        found = [d for d in described if isinstance(d, point) and d.name in usable]
        return sorted(found, key=lambda description: description.name)

    def find(
        self,
        point: type[Description],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Description:
        """The plugin called `name`, ready for use.

        PluginError with the real cause when it is disabled, incompatible or broken; `unknown` when
        there is none, which lists what there is.
        """
        plugin = self._plugin(point, name)
        if plugin is None:
            raise self._unknown(point, name, unknown)
        if not plugin.record.state.usable:
            raise _refusal(plugin.record) from plugin.cause
        return cast("Description", plugin.description)

    def factory(
        self,
        point: type[Factory],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Callable[..., object]:
        """Import the factory of the plugin called `name`, which is then loaded.

        Raises as `find` does; PluginError, too, when the import fails, and the plugin is broken.
        """
        description = self.find(point, name, unknown)
        try:
            factory = load_reference(description.factory)
            if not callable(factory):
                found = type(factory).__name__
                raise PluginError(f"`{description.factory}` must be callable, it is a `{found}`")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            raise self.broken(point, name, error) from error
        with self._lock:
            plugin = cast("Plugin", self._plugin(point, name))
            plugin.record = replace(plugin.record, state=PluginState.LOADED)
        return factory

    def broken(
        self, point: type[PluginDescription], name: str, error: BaseException
    ) -> PluginError:
        """Mark the plugin called `name` as broken by `error`; returns the error to raise for it."""
        with self._lock:
            plugin = cast("Plugin", self._plugin(point, name))
            plugin.break_by(error)
            return _refusal(plugin.record)

    def _plugin(self, point: type[PluginDescription], name: str) -> Plugin | None:
        """The plugin that has the name: neither a duplicate nor, if avoidable, a disabled one."""
        found = [
            plugin
            for plugin in self._discovered()
            if (plugin.record.kind, plugin.record.name) == (_KINDS[point], name)
        ]
        passed_over = (PluginState.DISABLED, PluginState.DUPLICATE)
        return min(found, key=lambda p: p.record.state in passed_over, default=None)

    def _discovered(self) -> list[Plugin]:
        with self._lock:
            if self._plugins is None:
                # A plugin that looks for plugins while it is being read sees none.
                self._plugins = []
                try:
                    self._hooks = pluggy.PluginManager(PROJECT)
                    self._hooks.add_hookspecs(Hooks)
                    self._plugins = discover(self._hooks, self.selection)
                except BaseException:
                    self._plugins = None
                    raise
                self._warn_of_unmatched(self._plugins)
            if self.selection.strict:
                self._require_flawless(self._plugins)
            return self._plugins

    def _warn_of_unmatched(self, plugins: list[Plugin]) -> None:
        for name in self.selection.unmatched(known_names(plugins)):
            _LOG.warning(_UNMATCHED, name)

    def _require_flawless(self, plugins: list[Plugin]) -> None:
        for name in self.selection.unmatched(known_names(plugins)):
            raise PluginError(_UNMATCHED % name)
        for plugin in plugins:
            if plugin.record.state in _PROBLEMS:
                raise _refusal(plugin.record) from plugin.cause

    def _unknown(
        self, point: type[PluginDescription], name: str, error: type[GptrsError]
    ) -> GptrsError:
        known = [record.name for record in self.records(point) if record.state.usable]
        close = difflib.get_close_matches(name[:_LONGEST_COMPARED], known, n=1)
        guess = f"did you mean `{close[0]}`? " if close else ""
        listed = ", ".join(f"`{name}`" for name in known) or "none"
        return error(
            f"there is no {_label(_KINDS[point])} {quoted(name)}",
            hint=f"{guess}available: {listed}; others come with the package that has them",
        )


def _refusal(record: PluginRecord) -> PluginError:
    source = f" (from {record.distribution} {record.version})"
    return PluginError(
        f"{_label(record.kind)} `{record.name}`{source} is {record.state}: {record.reason}",
        hint=record.hint,
    )


def _label(kind: str) -> str:
    return {"model": "model kind"}.get(kind, kind.replace("_", " "))
