"""The installed plugins by kind and name; they are discovered and read on first use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar, cast

from msgspec.structs import replace

from gptrs.errors import GptrsError, PluginError
from gptrs.plugins.descriptions import CommandPlugin, FactoryPlugin, PluginDescription
from gptrs.plugins.discovery import (
    COMMAND_LINE,
    DISTRIBUTION,
    SEVERAL,
    Plugin,
    arranged,
    discover,
    known_names,
    read,
    read_several,
)
from gptrs.plugins.entry_points import load_reference, require_callable
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.refusals import contested, no_such_plugin, refusal
from gptrs.plugins.selection import Selection, canonical
from gptrs.plugins.state import PluginRecord, PluginState, described
from gptrs.quoting import joined

Description = TypeVar("Description", bound=PluginDescription)
Factory = TypeVar("Factory", bound=FactoryPlugin)
Found = TypeVar("Found")

_LOG = logging.getLogger("gptrs")
_KINDS = {point.description: point.kind for point in EXTENSION_POINTS}
_UNMATCHED = "no plugin or distribution is called `%s`, the name selects nothing"
_PROBLEMS = (
    PluginState.DUPLICATE,
    PluginState.INCOMPATIBLE,
    PluginState.MISPLACED,
    PluginState.BROKEN,
)


class PluginRegistry:
    """The plugins in `selection`, discovered on first use; thread-safe.

    With a strict selection, every access raises PluginError while a plugin is broken, incompatible,
    misplaced or a duplicate, or a name in the selection matches none. `DISTRIBUTION:NAME` selects
    among plugins of one name. Without a distribution, a name means the plugin of gptrs itself,
    with a warning; PluginError if several third-party plugins have it. Built-in commands work
    whatever is selected, and whatever is damaged elsewhere.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._plugins: list[Plugin] | None = None
        self._families: list[Plugin] = []
        self._reading = False
        self._is_checked = False
        self._lock = threading.RLock()
        self._warned: set[str] = set()

    def discover(self) -> None:
        """Discover the plugins now; a second call does nothing."""
        self._discovered()

    def installed(self, point: type[PluginDescription] | None = None) -> list[PluginRecord]:
        """Return all plugins, or those of a kind, without reading descriptions.

        Unread plugins count as available, and have no summary. Only entry points for several
        descriptions are imported: ours, and, if a kind is given, those of others.
        """
        plugins = self._split(_KINDS.get(point) if point else None, own=point is None)
        records = [plugin.record for plugin in plugins]
        return [r for r in records if point is None or r.kind == _KINDS[point]]

    def known(self, point: type[PluginDescription]) -> list[PluginRecord]:
        """Return the usable plugins of a kind that have their names, importing no third party.

        Third-party plugins have a summary only if their descriptions were read before.
        """
        plugins = [p for p in self._split(_KINDS[point]) if p.record.kind == _KINDS[point]]
        for plugin in plugins:  # our own descriptions are light
            if plugin.own and not plugin.built_in and plugin.has_name:
                self._read_one(plugin)
        return [p.record for p in plugins if p.has_name and p.record.state.usable]

    def built_in(self) -> list[Plugin]:
        """Return the built-in commands; none if the entry points of gptrs-cli cannot be read."""
        with self._lock:
            self._discovered(checked=False)
            found = self._read_families(_KINDS[CommandPlugin], own=True, source=COMMAND_LINE)
            plugins = [each for each in found if each.built_in and not each.several]
            for plugin in plugins:
                self._read_one(plugin)
            return plugins

    def records(self, point: type[PluginDescription] | None = None) -> list[PluginRecord]:
        """Return all plugins, or those described by `point`, by kind, name and distribution.

        This, and the methods below, import their descriptions.
        """
        return [plugin.record for plugin in self._read(None if point is None else _KINDS[point])]

    def described(self, point: type[Description]) -> list[tuple[PluginRecord, Description | None]]:
        """Return the plugins of a kind that have their names, including unusable ones.

        The description is None if none was read.
        """
        return [
            (plugin.record, cast("Description | None", plugin.description))
            for plugin in self._read(_KINDS[point])
            if plugin.has_name
        ]

    def misplaced(self) -> list[PluginRecord]:
        """Return the entry points in groups that gptrs does not have, such as `gptrs.backend`."""
        found = (plugin.record for plugin in self._discovered())
        return [record for record in found if record.state is PluginState.MISPLACED]

    def take_over(self, records: Iterable[PluginRecord]) -> None:
        """Take over the findings of another process about plugins that are unread here.

        A plugin that is broken there is not imported here any more.
        """
        found = {(r.kind, r.name, r.distribution): r for r in records}
        with self._lock:
            for plugin in self._discovered():
                key = plugin.record.kind, plugin.record.name, plugin.record.distribution
                if plugin.unread and key in found:
                    plugin.record = found[key]
                    plugin.unread = plugin.record.state.usable

    def descriptions(self, point: type[Description]) -> list[Description]:
        """Return the descriptions of the usable plugins of a kind, by name."""
        found = [plugin for record, plugin in self.described(point) if record.state.usable]
        return [description for description in found if description is not None]

    def find(
        self,
        point: type[Description],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Description:
        """Return the description of the usable plugin `name`.

        Raises PluginError, with the cause, if it is disabled, incompatible or broken, or if several
        third-party plugins have the name; `unknown`, which lists the installed ones, if there is
        none.
        """
        plugin = self.plugin(point, name)
        if plugin is None:
            records = [*self.records(point), *self.misplaced()]
            raise no_such_plugin(_KINDS[point], name, records, unknown)
        self._warn_of_rivals(plugin)
        if not plugin.record.state.usable:
            raise refusal(plugin.record) from plugin.cause
        return cast("Description", plugin.description)

    def factory(
        self,
        point: type[Factory],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Callable[..., object]:
        """Import the factory of the plugin `name`, and mark the plugin as loaded.

        Raises as `find` does, and PluginError if the import fails; the plugin is then broken.
        """
        description = self.find(point, name, unknown)
        factory = self.imported(point, name, description.factory, require_callable)
        plugin = cast("Plugin", self.plugin(point, name))
        with self._lock:
            plugin.record = replace(plugin.record, state=PluginState.LOADED)
        return factory

    def imported(
        self,
        point: type[PluginDescription],
        name: str,
        reference: str,
        checked: Callable[[object, str], Found],
    ) -> Found:
        """Import a reference in the description of a plugin; return the result of `checked`.

        Raises PluginError if either fails; the plugin is then broken.
        """
        plugin = cast("Plugin", self.plugin(point, name))
        with self.code_of(point, name):
            found = foreign_import(plugin.record, lambda: load_reference(reference))
            return checked(found, reference)

    @contextmanager
    def code_of(
        self, point: type[PluginDescription], name: str, *passed: type[Exception]
    ) -> Generator[None]:
        """Run code of the plugin `name` in this scope: its errors are PluginErrors.

        The plugin is then broken. Ctrl-C and the errors `passed` go through; SystemExit does not:
        a plugin must not end the program.
        """
        try:
            yield
        except (KeyboardInterrupt, *passed):
            raise
        except BaseException as error:
            raise self.broken(point, name, error) from error

    def broken(
        self, point: type[PluginDescription], name: str, error: BaseException
    ) -> PluginError:
        """Mark the plugin `name` as broken by `error`; return the error to raise."""
        with self._lock:
            plugin = cast("Plugin", self.plugin(point, name))
            plugin.break_by(error)
            return refusal(plugin.record)

    def record(self, point: type[PluginDescription], name: str) -> PluginRecord:
        """Return the record of the plugin `name`, which must be installed."""
        return cast("Plugin", self.plugin(point, name)).record

    def plugin(self, point: type[PluginDescription], name: str) -> Plugin | None:
        """Return the plugin of that name; a disabled one only if there is no other.

        Raises PluginError if several third-party plugins have it, and no distribution is named.
        """
        distribution, _, own_name = name.rpartition(":")
        if point is CommandPlugin:
            for plugin in self.built_in() if canonical(distribution) in ("", COMMAND_LINE) else ():
                if plugin.record.name == own_name:
                    return plugin
        # Other entry points for several plugins are not imported for a plugin that has its own.
        source = canonical(distribution) if own_name == SEVERAL else None
        plugins = [
            plugin
            for plugin in (*self._split(_KINDS[point], source=source), *self._families)
            if plugin.record.kind == _KINDS[point]
            and (not distribution or plugin.distribution == canonical(distribution))
        ]
        # An unreadable entry point for several plugins may have had this name.
        unknown = [p for p in plugins if p.record.name == SEVERAL and not p.record.state.usable]
        found = [plugin for plugin in plugins if plugin.record.name == own_name] or unknown
        wanted = [plugin for plugin in found if plugin.record.state is not PluginState.DISABLED]
        chosen = min(wanted or found, key=lambda plugin: not plugin.has_name, default=None)
        if chosen is None:
            return None
        if not chosen.has_name and not distribution:
            raise contested(chosen)
        self._read_one(chosen)
        return chosen

    def _discovered(self, *, checked: bool = True) -> list[Plugin]:
        """Return the discovered plugins; none to a plugin that asks while it is being read."""
        with self._lock:
            if self._reading:
                return []
            if self._plugins is None:
                self._plugins = discover(self.selection)
            if checked and not self._is_checked:
                self._is_checked = True
                self._warn_of_damage()
            if checked and self.selection.strict:
                self._require_flawless()
            return self._plugins

    def _split(
        self, kind: str | None, *, own: bool = False, source: str | None = None
    ) -> list[Plugin]:
        """Return all plugins; entry points for several, of `kind` or of all kinds, are split.

        With `own`, this imports only entry points of gptrs itself; with `source`, only those of
        that distribution.
        """
        with self._lock:
            if not self._discovered():
                return []
            return self._read_families(kind, own=own, source=source)

    def _read_families(
        self, kind: str | None = None, *, own: bool = False, source: str | None = None
    ) -> list[Plugin]:
        for family in list(self._plugins or []):
            wanted = kind in (None, family.record.kind) and source in (None, family.distribution)
            if not family.unread or not family.several or (own and not family.own) or not wanted:
                continue
            self._reading = True
            try:
                members = read_several(family)
            finally:
                self._reading = False
            family.unread = False  # not after an interrupt: the next try starts over
            if family.record.state.usable:
                self._families.append(family)
                rest = [plugin for plugin in self._plugins or [] if plugin is not family]
                self._plugins = arranged([*rest, *members], self.selection)
        return self._plugins or []

    def _unmatched(self) -> list[str]:
        """Return the names in the selection that match no plugin."""
        if self.selection.unmatched(known_names(self._plugins or [])):
            self._read_families()
        return self.selection.unmatched(known_names(self._plugins or []))

    def _read(self, kind: str | None) -> list[Plugin]:
        """Return the plugins of a kind, reading those that have their names."""
        wanted = [p for p in self._split(kind) if kind is None or p.record.kind == kind]
        for plugin in wanted:
            if plugin.has_name:
                self._read_one(plugin)
        return wanted

    def _read_one(self, plugin: Plugin) -> None:
        with self._lock:
            if not plugin.unread:
                return
            self._reading = True
            try:
                read(plugin)
            finally:
                self._reading = False
            plugin.unread = False  # not after an interrupt: the next try starts over

    def _warn_of_damage(self) -> None:
        for record in (plugin.record for plugin in self._plugins or []):
            if record.kind == DISTRIBUTION:
                _LOG.warning("`%s` is skipped: %s; %s", record.name, record.reason, record.hint)
        for name in self._unmatched():
            _LOG.warning(_UNMATCHED, name)

    def _require_flawless(self) -> None:
        for name in self._unmatched():
            raise PluginError(_UNMATCHED % name)
        for plugin in self._read_families():
            if plugin.has_name:
                self._read_one(plugin)
            if plugin.record.state in _PROBLEMS:
                raise refusal(plugin.record) from plugin.cause

    def _warn_of_rivals(self, plugin: Plugin) -> None:
        if plugin.has_name and plugin.rivals and not plugin.built_in:
            others = joined([f"`{rival.qualified}`" for rival in plugin.rivals], "and")
            text = f"{described(plugin.record)} is used, not {others}, which has the same name"
            self.warn_once(plugin.qualified, text)

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning once per `about`."""
        if about not in self._warned:
            self._warned.add(about)
            _LOG.warning("%s", text)
