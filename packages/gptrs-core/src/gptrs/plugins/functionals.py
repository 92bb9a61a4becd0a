"""Implementations of functionals from plugins: known by name, imported when chosen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.entry_points import load_reference, require_callable
from gptrs.plugins.manager import manager
from gptrs.plugins.refusals import failure
from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord, described
from gptrs.quoting import joined

Function: TypeAlias = Callable[..., object]


class PluginImplementations:
    """The `ImplementationSource` that `gptrs.capture.ports` gives to the registry."""

    def names(self, functional: str) -> Sequence[str]:
        """Return the names of the implementations that usable plugins describe."""
        described = manager().descriptions(FunctionalPlugin)
        return [plugin.implementation for plugin in described if plugin.functional == functional]

    def load(self, functional: str, name: str) -> tuple[Function, Function | None] | None:
        """Import the implementation `name` and its `declines`; None if no plugin has it.

        `DISTRIBUTION:NAME` selects among plugins of one name. Raises PluginError, with the cause,
        if the plugin is disabled, incompatible or broken, or if several plugins have it.
        """
        distribution, _, own_name = name.rpartition(":")
        plugins = manager()
        known = dict(plugins.described(FunctionalPlugin))
        found = [
            record
            for record in plugins.records(FunctionalPlugin)
            if _answers_to(record, known.get(record), functional, own_name)
            and canonical(distribution) in ("", canonical(record.distribution or ""))
        ]
        if not found:
            return None
        _require_one(found, functional, name)
        record = min(found, key=lambda record: not record.state.usable)
        qualified = f"{record.distribution}:{record.name}" if distribution else record.name
        declines = _declines(plugins.find(FunctionalPlugin, qualified), qualified)
        function = plugins.factory(FunctionalPlugin, qualified)
        return _without_exit(function, record), declines and _without_exit(declines, record)


def _without_exit(function: Function, record: PluginRecord) -> Function:
    """Wrap `function` to turn SystemExit into a PluginError."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except SystemExit as error:
            raise failure(record, "its implementation", error) from error

    return call


def _require_one(records: Sequence[PluginRecord], functional: str, name: str) -> None:
    """Raise PluginError if several usable plugins have an implementation."""
    usable = [record for record in records if record.state.usable]
    if len(usable) > 1:
        listed = joined([described(record) for record in usable], "and")
        raise PluginError(
            f"several plugins implement `{functional}` as `{name}`: {listed}",
            hint=f"name one by its distribution, as `{usable[0].distribution}:{name}`",
        )


def _answers_to(
    record: PluginRecord, plugin: FunctionalPlugin | None, functional: str, name: str
) -> bool:
    """Return whether a plugin has the implementation; unreadable ones are judged by name."""
    if plugin is None:
        return record.name in (name, f"{functional}.{name}")
    return (plugin.functional, plugin.implementation) == (functional, name)


def _declines(plugin: FunctionalPlugin, name: str) -> Function | None:
    if plugin.declines is None:
        return None
    with manager().code_of(FunctionalPlugin, name):
        return require_callable(load_reference(plugin.declines), plugin.declines)
