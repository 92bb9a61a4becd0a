"""Find the entry points in our groups, and which of them the user wants; nothing is imported.

No plugin stops another one: what is damaged or has a name that is taken becomes the state of that
plugin, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import islice
from typing import cast

import pluggy

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import API_VERSION, PluginDescription, is_compatible
from gptrs.plugins.entry_points import ENTRY_POINTS_FILE, MOST_ENTRIES, Installed, installed
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.hookspecs import EXTENSION_POINTS, PROJECT, ExtensionPoint, Hooks
from gptrs.plugins.selection import Selection, canonical, is_own
from gptrs.plugins.state import PluginRecord, PluginState, label
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import joined, one_line

DISTRIBUTION = "distribution"
"""The kind of records of distributions whose entry points cannot be read."""
SEVERAL = "*"
"""The name of an entry point that yields several descriptions, which have names of their own."""
_COMMAND_LINE = "gptrs-cli"


@dataclass(frozen=True)
class Candidate:
    """An entry point in one of our groups, and the distribution that installed it.

    One of several plugins of an entry point has its `description`,
    and an entry point of its own name with the value of theirs.
    """

    point: ExtensionPoint
    entry_point: EntryPoint
    distribution: str
    version: str
    description: PluginDescription | None = None

    @property
    def several(self) -> bool:
        """Whether the entry point yields several descriptions."""
        return self.entry_point.name == SEVERAL

    @property
    def names(self) -> Sequence[str]:
        """The names that a selection may use, see `names_of`."""
        return names_of(self.point.kind, self.entry_point.name, self.distribution)

    @property
    def identity(self) -> str:
        """Its name, which no other candidate has."""
        return f"{self.point.kind}:{self.entry_point.name}@{canonical(self.distribution)}"

    @property
    def qualified(self) -> str:
        """`DISTRIBUTION:NAME`, which no other plugin of its kind is called."""
        return f"{canonical(self.distribution)}:{self.entry_point.name}"

    @property
    def own(self) -> bool:
        """Whether it is a part of gptrs itself."""
        return is_own(self.distribution)

    @property
    def built_in(self) -> bool:
        """Whether it is a built-in command; see `is_built_in`."""
        return is_built_in(self.point.kind, self.distribution)


def names_of(kind: str, name: str, distribution: str) -> Sequence[str]:
    """Return its name, `KIND:NAME`, `DISTRIBUTION:NAME` and its distribution."""
    source = canonical(distribution)
    return name, f"{kind}:{name}", f"{source}:{name}", source


def is_built_in(kind: str, distribution: str | None) -> bool:
    """Whether the plugin is a command of the command line itself.

    No selection excludes those, and no other distribution takes their names: a user who selects
    plugins still needs `gptrs list plugins`.
    """
    return kind == "command" and canonical(distribution or "") == _COMMAND_LINE


def find_candidates() -> tuple[list[Candidate], list[Installed]]:
    """Return all entry points in our groups by kind, name and distribution, and damaged files."""
    points = {point.group: point for point in EXTENSION_POINTS}
    found = list(installed(points))
    candidates = [
        Candidate(points[entry_point.group], entry_point, each.distribution, each.version)
        for each in found
        for entry_point in each.entry_points
    ]
    return candidates, [each for each in found if each.error is not None]


def _order(candidate: Candidate) -> tuple[int, str, bool, str]:
    """Return the key by which plugins are listed: kind, name, ours before others, distribution."""
    place = EXTENSION_POINTS.index(candidate.point)
    name, source = candidate.entry_point.name, canonical(candidate.distribution)
    return place, name, not candidate.own, source


@dataclass()
class Plugin:
    """An installed plugin: its record, its description once read, and what broke it.

    While `unread` is not None nothing of the plugin was imported; it counts as available, or as a
    duplicate. `rivals` are other plugins of its kind and name that were not excluded. One of gptrs
    itself has the name all the same; of any others none has, and each is used by its full name.
    """

    record: PluginRecord
    candidate: Candidate | None = None
    unread: Candidate | None = None
    description: PluginDescription | None = None
    cause: BaseException | None = None
    rivals: Sequence[Candidate] = ()

    @property
    def distribution(self) -> str:
        """The normalized name of its distribution."""
        return canonical(self.record.distribution or "")

    @property
    def qualified(self) -> str:
        """`DISTRIBUTION:NAME`, which no other plugin of its kind is called."""
        return f"{self.distribution}:{self.record.name}"

    @property
    def has_name(self) -> bool:
        """Whether its name alone stands for it."""
        return not self.rivals or is_own(self.record.distribution)

    def break_by(self, error: BaseException) -> None:
        """Mark the plugin as broken by `error`, which becomes its reason and its cause."""
        own = isinstance(error, PluginError)
        self.record = replace(
            self.record,
            state=PluginState.BROKEN,
            reason=error.message if own else one_line(error),
            hint=(error.hint if own else None) or _repair_hint(self.record, error),
        )
        self.cause = error

    def make_incompatible(self, reason: str) -> None:
        """Mark the plugin as written for another API version."""
        hint = f"install versions of `{self.record.distribution}` and `gptrs-core` that fit"
        self.record = replace(self.record, state=PluginState.INCOMPATIBLE, reason=reason, hint=hint)


def discover(selection: Selection) -> list[Plugin]:
    """Return all plugins, those that `selection` wants yet unread.

    Sorted by kind, name and distribution, those of gptrs before others.
    """
    candidates, unreadable = find_candidates()
    return [*(_unreadable(file) for file in unreadable), *_claimed(candidates, selection)]


def regrouped(
    plugins: Sequence[Plugin], members: Sequence[Candidate], selection: Selection
) -> list[Plugin]:
    """Return `plugins` with `members` among them, which entry points for several yielded.

    A plugin stays the same object unless it now has other rivals.
    """
    known = {p.candidate.identity: p for p in plugins if p.candidate is not None}
    candidates = [p.candidate for p in known.values() if p.candidate is not None]
    found = [p for p in plugins if p.candidate is None]
    for plugin in _claimed([*candidates, *members], selection):
        old = known.get(plugin.candidate.identity) if plugin.candidate is not None else None
        same = old is not None and _identities(old.rivals) == _identities(plugin.rivals)
        found.append(old if old is not None and same else plugin)
    return found


def _identities(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate.identity for candidate in candidates]


def _claimed(candidates: Sequence[Candidate], selection: Selection) -> list[Plugin]:
    """Return the plugins of all candidates: those that `selection` excludes, duplicates, others.

    Entry points for several plugins have no rivals. Those of others are excluded with their
    distribution, ours never: the names of their plugins are not known before they are read.
    """
    candidates = sorted(candidates, key=_order)
    plugins: list[Plugin] = []
    excluded = {
        candidate.identity
        for candidate in candidates
        if not candidate.built_in and _exclusion(candidate, selection) is not None
    }
    claims: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.identity not in excluded and not candidate.several:
            claims[candidate.point.kind, candidate.entry_point.name].append(candidate)
    for candidate in candidates:
        claimed = claims[candidate.point.kind, candidate.entry_point.name]
        rivals = [other for other in claimed if other is not candidate]
        if candidate.identity in excluded:
            plugins.append(_excluded(candidate, selection))
        elif rivals and not candidate.own:
            plugins.append(_duplicate(candidate, rivals))
        else:
            record = _record(candidate, PluginState.AVAILABLE)
            plugins.append(Plugin(record, candidate, unread=candidate, rivals=rivals))
    return plugins


def _exclusion(candidate: Candidate, selection: Selection) -> tuple[str, str] | None:
    if not candidate.several:
        return selection.exclusion(candidate.names)
    return None if candidate.own else replace(selection, allowed=None).exclusion(candidate.names)


def known_names(plugins: list[Plugin]) -> set[str]:
    """Return every name that a selection may use for one of `plugins`; built-in commands stay."""
    names: set[str] = set()
    for record in (plugin.record for plugin in plugins):
        if is_built_in(record.kind, record.distribution):
            continue
        names.update(names_of(record.kind, record.name, record.distribution or ""))
    return names - {""}


def _record(
    candidate: Candidate, state: PluginState, reason: str | None = None, hint: str | None = None
) -> PluginRecord:
    return PluginRecord(
        name=candidate.entry_point.name,
        kind=candidate.point.kind,
        distribution=candidate.distribution,
        version=candidate.version,
        api=None,
        state=state,
        reason=reason,
        hint=hint,
        entry_point=candidate.entry_point.value,
        summary=None,
    )


def _excluded(candidate: Candidate, selection: Selection) -> Plugin:
    reason, hint = _exclusion(candidate, selection) or (None, None)
    return Plugin(_record(candidate, PluginState.DISABLED, reason, hint), candidate)


def _duplicate(candidate: Candidate, rivals: Sequence[Candidate]) -> Plugin:
    """Return the plugin of a stranger whose name others have, too."""
    kind, own = label(candidate.point.kind), next((rival for rival in rivals if rival.own), None)
    hint = f"name this one as `{candidate.qualified}`"
    if own is not None:
        reason = f"the {kind} of this name is that of `{own.distribution}`"
    else:
        listed = joined([f"`{rival.distribution}`" for rival in rivals], "and")
        reason = f"{listed} registers a {kind} of this name, too"
    if own is None or not own.built_in:
        hint += f", or leave the other out: `-p no:{(own or rivals[0]).qualified}`"
    record = _record(candidate, PluginState.DUPLICATE, reason, hint)
    return Plugin(record, candidate, unread=candidate, rivals=rivals)


def _unreadable(found: Installed) -> Plugin:
    error = found.error or PluginError("unknown")
    reason = error.message if isinstance(error, PluginError) else one_line(error)
    record = PluginRecord(
        name=found.distribution,
        kind=DISTRIBUTION,
        distribution=found.distribution,
        version=found.version,
        api=None,
        state=PluginState.BROKEN,
        reason=f"its {ENTRY_POINTS_FILE} cannot be read: {reason}",
        hint=f"reinstall `{found.distribution}`",
        entry_point=ENTRY_POINTS_FILE,
        summary=None,
    )
    return Plugin(record, cause=error)


def _repair_hint(record: PluginRecord, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    own = record.entry_point.partition(":")[0].partition(".")[0]
    exclude = f"or exclude it by `GPTRS_DISABLE_PLUGINS={record.name}`"
    if missing is not None and missing.partition(".")[0] != own:
        return f"install the module `{missing}`, {exclude}"
    return f"update or reinstall `{record.distribution}`, {exclude}"


# Read the description that an entry point names, which imports a module of a stranger.
#
# It happens when a kind of plugins is first asked for, so that a command imports what it needs.


def read(plugin: Plugin, candidate: Candidate) -> None:
    """Read the description of a plugin; whatever goes wrong becomes its state.

    Nothing that a plugin does is raised, KeyboardInterrupt apart.
    """
    try:
        description = foreign_import(plugin.record, lambda: _describe(candidate))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        plugin.break_by(error)
        return
    plugin.description = description
    plugin.record = replace(plugin.record, api=description.api, summary=description.summary)
    if not is_compatible(description.api):
        plugin.make_incompatible(
            f"written for plugin API {description.api}, this gptrs has {API_VERSION}"
        )


def read_several(plugin: Plugin, candidate: Candidate) -> list[Candidate]:
    """Return a candidate for each description that an entry point for several yields.

    Whatever goes wrong becomes the state of `plugin`, which stands for all of them.
    """
    try:
        found = foreign_import(plugin.record, lambda: _described_by(candidate))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        plugin.break_by(error)
        return []
    value, group = candidate.entry_point.value, candidate.entry_point.group
    return [
        replace(candidate, entry_point=EntryPoint(each.name, value, group), description=each)
        for each in found
    ]


def _described_by(candidate: Candidate) -> list[PluginDescription]:
    """Import what the entry point names: an iterable of descriptions, or a function of none."""
    target: object = candidate.entry_point.load()
    value, wanted = candidate.entry_point.value, candidate.point.description
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


def _describe(candidate: Candidate) -> PluginDescription:
    """Import what the entry point names: a description, or what computes one in a hook."""
    if candidate.description is not None:
        return candidate.description
    target: object = candidate.entry_point.load()
    wanted, entry = candidate.point.description, candidate.entry_point
    if hasattr(target, Hooks.gptrs_describe.__name__):
        target = _computed(target, candidate.identity)
    if not isinstance(target, wanted):
        found = type(target).__name__
        raise PluginError(f"`{entry.value}` must be a `{wanted.__name__}`, it is a `{found}`")
    if target.name != entry.name:
        raise PluginError(
            f"the entry point `{entry.name}` names a plugin that calls itself `{target.name}`"
        )
    return target


def _computed(target: object, identity: str) -> object:
    """Return what `gptrs_describe` of `target` gives, `target` itself if that is no hook."""
    hooks = pluggy.PluginManager(PROJECT)
    hooks.add_hookspecs(Hooks)
    hooks.register(target, identity)
    answers: list[object] = hooks.hook.gptrs_describe()
    return answers[0] if answers else target
