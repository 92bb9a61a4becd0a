"""Discovery of entry points in our groups, and the user's selection; nothing is imported.

No plugin stops another one: damage, or a name that is taken, becomes the state of that plugin, with
the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import PluginError
from gptrs.metadata_library import metadata
from gptrs.plugins.descriptions import API_VERSION, PluginDescription, is_compatible
from gptrs.plugins.entry_points import ENTRY_POINTS_FILE, MOST_ENTRIES, Installed, installed
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.hookspecs import EXTENSION_POINTS, HOOKS, ExtensionPoint, Hooks
from gptrs.plugins.selection import Selection, canonical, is_own
from gptrs.plugins.state import PluginRecord, PluginState, label
from gptrs.quoting import did_you_mean, joined, listed, one_line, quoted

Found = TypeVar("Found")
DISTRIBUTION = "distribution"
"""The kind of records for distributions with unreadable entry points."""
SEVERAL = "*"
"""The name of an entry point that yields several descriptions with their own names."""
MISPLACED = "plugin"
"""The kind of records for entry points in groups that gptrs does not have."""
COMMAND_LINE = "gptrs-cli"
"""The distribution of the built-in commands."""


def names_of(kind: str, name: str, distribution: str) -> Sequence[str]:
    """Return a plugin's names: NAME, `KIND:NAME`, `DISTRIBUTION:NAME`, and its distribution."""
    source = canonical(distribution)
    return name, f"{kind}:{name}", f"{source}:{name}", source


def is_built_in(kind: str, distribution: str | None) -> bool:
    """Return whether the plugin is a built-in command.

    No selection excludes built-in commands, and no other distribution can take their names: a user
    who selects plugins still needs `gptrs list plugins`.
    """
    return kind == "command" and canonical(distribution or "") == COMMAND_LINE


class Plugin(Struct):
    """An installed plugin: its origin, its state, and its description once read.

    While it is `unread`, nothing of it was imported; it counts as available, or as a duplicate. A
    plugin from an entry point for several has its description from the start, and an entry point of
    its own name with their common value. `rivals` are other plugins of its kind and name that were
    not excluded: a plugin of gptrs itself keeps the name; among others, none gets it, and each is
    used by its full name. `point` is None for a distribution with unreadable entry points, and for
    an entry point in an unknown group.
    """

    point: ExtensionPoint | None
    entry_point: metadata.EntryPoint
    record: PluginRecord
    description: PluginDescription | None = None
    unread: bool = False
    cause: BaseException | None = None
    rivals: Sequence[Plugin] = ()
    arranged: bool = False

    @classmethod
    def of(
        cls,
        point: ExtensionPoint,
        entry_point: metadata.EntryPoint,
        distribution: str,
        version: str,
        description: PluginDescription | None = None,
    ) -> Plugin:
        """Return an unread plugin, whose name others may have, too."""
        found = _record(entry_point, point.kind, distribution, version)
        return cls(point, entry_point, found, description)

    @property
    def several(self) -> bool:
        """Whether the entry point yields several descriptions."""
        return self.entry_point.name == SEVERAL

    @property
    def names(self) -> Sequence[str]:
        """The names that a selection may use, see `names_of`."""
        record = self.record
        return names_of(record.kind, record.name, record.distribution or "")

    @property
    def distribution(self) -> str:
        """The normalized name of its distribution."""
        return canonical(self.record.distribution or "")

    @property
    def qualified(self) -> str:
        """`DISTRIBUTION:NAME`, unique among plugins of its kind."""
        return f"{self.distribution}:{self.record.name}"

    @property
    def own(self) -> bool:
        """Whether it is a part of gptrs itself."""
        return is_own(self.record.distribution)

    @property
    def built_in(self) -> bool:
        """Whether it is a built-in command; see `is_built_in`."""
        return is_built_in(self.record.kind, self.record.distribution)

    @property
    def has_name(self) -> bool:
        """Whether its name alone identifies it."""
        return not self.rivals or self.own

    def become(
        self, state: PluginState, reason: str | None = None, hint: str | None = None
    ) -> None:
        """Change the state, with a reason and a hint."""
        self.record = replace(self.record, state=state, reason=reason, hint=hint)

    def break_by(self, error: BaseException) -> None:
        """Mark the plugin as broken by `error`, which becomes its reason and its cause."""
        own = isinstance(error, PluginError)
        hint = (error.hint if own else None) or _repair_hint(self.record, error)
        self.become(PluginState.BROKEN, error.message if own else one_line(error), hint)
        self.cause = error

    def arrange(self, rivals: Sequence[Plugin], excluded: tuple[str, str] | None) -> None:
        """Update the state by the rivals; if they changed, a plugin has to be read again."""
        if self.arranged and [*map(id, rivals)] == [*map(id, self.rivals)]:
            return
        self.arranged, self.rivals, self.unread = True, rivals, excluded is None
        if excluded is not None:
            self.become(PluginState.DISABLED, *excluded)
        elif rivals and not self.own:
            self.become(PluginState.DUPLICATE, *self._contest())
        else:
            self.become(PluginState.AVAILABLE)

    def _contest(self) -> tuple[str, str]:
        """Return the reason and the hint for a third-party plugin with a contested name."""
        kind, rivals = label(self.record.kind), self.rivals
        own = next((rival for rival in rivals if rival.own), None)
        hint = f"name this one as `{self.qualified}`"
        if own is not None:
            reason = f"the {kind} of this name is that of `{own.record.distribution}`"
        else:
            others = joined([f"`{rival.record.distribution}`" for rival in rivals], "and")
            reason = f"{others} registers a {kind} of this name, too"
        if own is None or not own.built_in:
            hint += f", or leave the other out: `-p no:{(own or rivals[0]).qualified}`"
        return reason, hint


def discover(selection: Selection) -> list[Plugin]:
    """Return all plugins; the selected ones are unread.

    Sorted by kind, name and distribution, with gptrs itself first.
    """
    points = {point.group: point for point in EXTENSION_POINTS}
    found = list(installed(points))
    plugins = [
        Plugin.of(points[entry_point.group], entry_point, each.distribution, each.version)
        if entry_point.group in points
        else _misplaced(each, entry_point, points)
        for each in found
        for entry_point in each.entry_points
    ]
    damaged = (_unreadable(each, each.error) for each in found if each.error is not None)
    return arranged([*damaged, *plugins], selection)


def arranged(plugins: Iterable[Plugin], selection: Selection) -> list[Plugin]:
    """Return plugins in order, with their states by `selection` and by each other.

    Entry points for several plugins have no rivals, since the names are unknown before they are
    read. They are excluded with their distribution, except our own.
    """
    found = sorted(plugins, key=_order)
    excluded = {id(plugin): _exclusion(plugin, selection) for plugin in found}
    claims: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in found:
        if plugin.point is not None and not plugin.several and excluded[id(plugin)] is None:
            claims[plugin.record.kind, plugin.record.name].append(plugin)
    for plugin in found:
        if plugin.point is not None:
            claimed = claims[plugin.record.kind, plugin.record.name]
            rivals = [other for other in claimed if other is not plugin]
            plugin.arrange(rivals, excluded[id(plugin)])
    return found


def _order(plugin: Plugin) -> tuple[int, str, bool, str]:
    """Return the sort key of plugins: kind, name, ours first, distribution."""
    kind = -1 if plugin.point is None else EXTENSION_POINTS.index(plugin.point)
    return kind, plugin.record.name if plugin.point else "", not plugin.own, plugin.distribution


def _exclusion(plugin: Plugin, selection: Selection) -> tuple[str, str] | None:
    if plugin.built_in:
        return None
    if not plugin.several:
        return selection.exclusion(plugin.names)
    return None if plugin.own else replace(selection, allowed=None).exclusion(plugin.names)


def known_names(plugins: Iterable[Plugin]) -> set[str]:
    """Return every name that a selection may use for one of `plugins`; built-in commands stay."""
    return {name for plugin in plugins if not plugin.built_in for name in plugin.names} - {""}


def _record(
    entry_point: metadata.EntryPoint, kind: str, distribution: str, version: str
) -> PluginRecord:
    return PluginRecord(
        name=entry_point.name,
        kind=kind,
        distribution=distribution,
        version=version,
        api=None,
        state=PluginState.AVAILABLE,
        reason=None,
        hint=None,
        entry_point=entry_point.value,
        summary=None,
    )


def _unreadable(found: Installed, error: Exception) -> Plugin:
    entry_point = metadata.EntryPoint(found.distribution, ENTRY_POINTS_FILE, "")
    plugin = Plugin(
        None, entry_point, _record(entry_point, DISTRIBUTION, found.distribution, found.version)
    )
    reason = error.message if isinstance(error, PluginError) else one_line(error)
    hint = f"reinstall `{found.distribution}`"
    plugin.become(PluginState.BROKEN, f"its {ENTRY_POINTS_FILE} cannot be read: {reason}", hint)
    plugin.cause = error
    return plugin


def _misplaced(
    found: Installed, entry_point: metadata.EntryPoint, groups: Collection[str]
) -> Plugin:
    record = _record(entry_point, MISPLACED, found.distribution, found.version)
    plugin = Plugin(None, entry_point, record)
    group = entry_point.group
    reason = f"gptrs reads no entry points in the group {quoted(group)}"
    guess = did_you_mean(group, groups).rstrip()
    hint = guess or f"the groups are {listed(sorted(groups), len(groups))}"
    plugin.become(PluginState.MISPLACED, reason, hint)
    return plugin


def _repair_hint(record: PluginRecord, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    own = record.entry_point.partition(":")[0].partition(".")[0]
    exclude = f"or exclude it by `GPTRS_DISABLE_PLUGINS={record.name}`"
    if missing is not None and missing.partition(".")[0] != own:
        return f"install the module `{missing}`, {exclude}"
    return f"update or reinstall `{record.distribution}`, {exclude}"


# Reading of the description that an entry point names, which imports third-party code.
#
# This happens when a kind of plugins is first requested, so that commands import only what they
# need.


def read(plugin: Plugin) -> None:
    """Read the description of a plugin; any failure becomes its state."""
    plugin.become(PluginState.AVAILABLE)
    found = _imported(plugin, _describe)
    if found is None:
        return
    plugin.description = found
    plugin.record = replace(plugin.record, api=found.api, summary=found.summary)
    if not is_compatible(found.api):
        plugin.become(
            PluginState.INCOMPATIBLE,
            f"written for plugin API {found.api}, this gptrs has {API_VERSION}",
            f"install versions of `{plugin.record.distribution}` and `gptrs-core` that fit",
        )


def read_several(plugin: Plugin) -> list[Plugin]:
    """Return a plugin for each description that an entry point for several yields.

    Any failure becomes the state of `plugin`, which represents all of them.
    """
    record, point = plugin.record, plugin.point
    value, group = plugin.entry_point.value, plugin.entry_point.group
    return [
        Plugin.of(
            cast("ExtensionPoint", point), metadata.EntryPoint(each.name, value, group),
            record.distribution or "", record.version or "", each,
        )
        for each in _imported(plugin, _described) or ()
    ]  # fmt: skip


def _imported(plugin: Plugin, load: Callable[[Plugin], Found]) -> Found | None:
    """Return the result of `load`, an import for a plugin; None if that breaks it.

    Nothing that a plugin raises passes, except KeyboardInterrupt.
    """
    try:
        return foreign_import(plugin.record, lambda: load(plugin))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        plugin.break_by(error)
        return None


def _wanted(plugin: Plugin) -> type[PluginDescription]:
    assert plugin.point is not None, "entry points that cannot be read are broken"
    return plugin.point.description


def _described(plugin: Plugin) -> list[PluginDescription]:
    """Import the object of the entry point: descriptions, or a function that returns them."""
    target: object = plugin.entry_point.load()
    value, wanted = plugin.entry_point.value, _wanted(plugin)
    made: object = target() if callable(target) else target
    if not isinstance(made, Iterable):
        kind = type(made).__name__
        raise PluginError(f"`{value}` must give several descriptions, it gives a `{kind}`")
    found = list(islice(cast("Iterable[object]", made), MOST_ENTRIES + 1))
    if len(found) > MOST_ENTRIES:
        raise PluginError(f"`{value}` gives more than {MOST_ENTRIES} descriptions")
    names: set[str] = set()
    for each in found:
        if not isinstance(each, wanted):
            kind = type(each).__name__
            raise PluginError(f"`{value}` must give a `{wanted.__name__}` each, one is a `{kind}`")
        if each.name in names:
            raise PluginError(f"`{value}` gives two descriptions called `{each.name}`")
        names.add(each.name)
    return cast("list[PluginDescription]", found)


def _describe(plugin: Plugin) -> PluginDescription:
    """Import the object of the entry point: a description, or an object with a hook for it."""
    if plugin.description is not None:
        return plugin.description
    target: object = plugin.entry_point.load()
    wanted, entry = _wanted(plugin), plugin.entry_point
    if hasattr(target, Hooks.gptrs_describe.__name__):
        target = _computed(target, plugin.qualified)
    if not isinstance(target, wanted):
        found = type(target).__name__
        raise PluginError(f"`{entry.value}` must be a `{wanted.__name__}`, it is a `{found}`")
    if target.name != entry.name:
        raise PluginError(
            f"the entry point `{entry.name}` names a plugin that calls itself `{target.name}`"
        )
    return target


def _computed(target: object, identity: str) -> object:
    """Return the result of `gptrs_describe` of `target`; `target` itself without that hook."""
    HOOKS.register(target, identity)
    try:
        answer: object = HOOKS.hook.gptrs_describe()
    finally:  # the hook asks every plugin that is registered
        HOOKS.unregister(target)
    return target if answer is None else answer
