"""Find the entry points in our groups, and which of them the user wants; nothing is imported.

No plugin stops another one: what is damaged or has a name that is taken becomes the state of that
plugin, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import PluginDescription
from gptrs.plugins.entry_points import ENTRY_POINTS_FILE, Installed, installed
from gptrs.plugins.hookspecs import EXTENSION_POINTS, ExtensionPoint
from gptrs.plugins.selection import Selection, canonical
from gptrs.plugins.state import PluginRecord, PluginState

DISTRIBUTION = "distribution"
"""The kind of records of distributions whose entry points cannot be read."""
_COMMAND_LINE = "gptrs-cli"


@dataclass(frozen=True)
class Candidate:
    """An entry point in one of our groups, and the distribution that installed it.

    `stamp` is that of `Installed`.
    """

    point: ExtensionPoint
    entry_point: EntryPoint
    distribution: str
    version: str
    stamp: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The names that a selection may use: its name, `KIND:NAME`, its distribution."""
        name = self.entry_point.name
        return name, f"{self.point.kind}:{name}", canonical(self.distribution)

    @property
    def identity(self) -> str:
        """Its name, which no other candidate has."""
        return f"{self.point.kind}:{self.entry_point.name}@{canonical(self.distribution)}"

    @property
    def built_in(self) -> bool:
        """Whether it is a built-in command; see `is_built_in`."""
        return is_built_in(self.point.kind, self.distribution)


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
        Candidate(
            points[entry_point.group], entry_point, each.distribution, each.version, each.stamp
        )
        for each in found
        for entry_point in each.entry_points
    ]
    order = [point.kind for point in EXTENSION_POINTS]
    candidates.sort(
        key=lambda c: (order.index(c.point.kind), c.entry_point.name, not c.built_in, c.names[2])
    )
    return candidates, [each for each in found if each.error is not None]


@dataclass
class Plugin:
    """An installed plugin: its record, its description once read, and what broke it.

    While `unread` is not None nothing of the plugin was imported; it counts as available.
    """

    record: PluginRecord
    unread: Candidate | None = None
    description: PluginDescription | None = None
    cause: BaseException | None = None

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

    Sorted by kind, name and distribution; of several distributions with one name the first in
    that order has it.
    """
    candidates, unreadable = find_candidates()
    plugins = [_unreadable(file) for file in unreadable]
    holders: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        key = candidate.point.kind, candidate.entry_point.name
        if not candidate.built_in and selection.exclusion(candidate.names) is not None:
            plugins.append(_excluded(candidate, selection))
        elif holders.setdefault(key, candidate) is candidate:
            plugins.append(Plugin(_record(candidate, PluginState.AVAILABLE), unread=candidate))
        else:
            plugins.append(_duplicate(candidate, holders[key]))
    return plugins


def known_names(plugins: list[Plugin]) -> set[str]:
    """Return every name that a selection may use for one of `plugins`; built-in commands stay."""
    names: set[str] = set()
    for record in (plugin.record for plugin in plugins):
        if is_built_in(record.kind, record.distribution):
            continue
        names.update((record.name, f"{record.kind}:{record.name}"))
        if record.distribution is not None:
            names.add(canonical(record.distribution))
    return names


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
    reason, hint = selection.exclusion(candidate.names) or (None, None)
    return Plugin(_record(candidate, PluginState.DISABLED, reason, hint))


def _duplicate(candidate: Candidate, holder: Candidate) -> Plugin:
    if holder.built_in:
        reason = "this is the name of a built-in command, which no plugin replaces"
        hint = f"uninstall `{candidate.distribution}`, or ask its authors for another name"
        return Plugin(_record(candidate, PluginState.DUPLICATE, reason, hint))
    reason = f"`{holder.distribution}` registers a {holder.point.kind} of this name, too"
    exclude = f"`GPTRS_DISABLE_PLUGINS={canonical(holder.distribution)}`"
    hint = f"uninstall one of the two, or exclude one by {exclude}"
    return Plugin(_record(candidate, PluginState.DUPLICATE, reason, hint))


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


def one_line(error: BaseException) -> str:
    """Return type and message of `error` on one line of bounded length, whatever its text."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be shown)"
    name = type(error).__name__
    shown = message if len(message) <= 300 else f"{message[:297]}..."
    return f"{name}: {shown}" if shown else name
