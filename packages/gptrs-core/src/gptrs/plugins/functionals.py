"""Implementations of functionals from plugins: known by name, imported when chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs.plugins.references import load_reference
from gptrs.plugins.state import PluginRecord, PluginState

Function: TypeAlias = Callable[..., object]


class PluginImplementations:
    """The `ImplementationSource` that `gptrs.capture.late_binding` gives to the registry."""

    def names(self, functional: str) -> Sequence[str]:
        """Return the names of the implementations that usable plugins describe."""
        described = manager().descriptions(FunctionalPlugin)
        return [plugin.implementation for plugin in described if plugin.functional == functional]

    def load(self, functional: str, name: str) -> tuple[Function, Function | None] | None:
        """Import the implementation called `name` and its `declines`, None if no plugin has it.

        PluginError with the real cause when the plugin is disabled, incompatible or broken.
        """
        plugins = manager()
        found = [
            (record, plugin)
            for record, plugin in plugins.described(FunctionalPlugin)
            if record.state is not PluginState.DUPLICATE
            and _answers_to(record, plugin, functional, name)
        ]
        if not found:
            return None
        record, _ = min(found, key=lambda pair: not pair[0].state.usable)
        plugin = plugins.find(FunctionalPlugin, record.name)
        declines = _declines(plugin)
        return plugins.factory(FunctionalPlugin, plugin.name), declines


def _answers_to(
    record: PluginRecord, plugin: FunctionalPlugin | None, functional: str, name: str
) -> bool:
    """Return whether a plugin has the implementation; judge an unreadable one by its name."""
    if plugin is None:
        return record.name in (name, f"{functional}.{name}")
    return (plugin.functional, plugin.implementation) == (functional, name)


def _declines(plugin: FunctionalPlugin) -> Function | None:
    if plugin.declines is None:
        return None
    try:
        found = load_reference(plugin.declines)
        if not callable(found):
            kind = type(found).__name__
            raise PluginError(f"`{plugin.declines}` must be callable, it is a `{kind}`")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        raise manager().broken(FunctionalPlugin, plugin.name, error) from error
    return found
