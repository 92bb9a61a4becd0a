"""Reads the descriptions of installed plugins one at a time, so that none stops another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pluggy

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import API_VERSION, PluginDescription, is_compatible
from gptrs.plugins.entry_points import ENTRY_POINTS_FILE, Candidate, Unreadable, find_candidates
from gptrs.plugins.hookspecs import Described, Hooks
from gptrs.plugins.references import one_line
from gptrs.plugins.selection import Selection, canonical
from gptrs.plugins.state import PluginRecord, PluginState


@dataclass
class Plugin:
    """An installed plugin: its record, its description once read, and what broke it."""

    record: PluginRecord
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


def discover(hooks: pluggy.PluginManager, selection: Selection) -> list[Plugin]:
    """Read every plugin that `selection` wants and register its description with `hooks`.

    Sorted by kind, name and distribution; of several distributions with one name the first in
    that order has it. Nothing that a plugin does is raised, KeyboardInterrupt apart.
    """
    candidates, unreadable = find_candidates()
    plugins = [_unreadable(file) for file in unreadable]
    for candidate in candidates:
        if selection.exclusion(candidate.names) is not None:
            hooks.set_blocked(candidate.identity)
    holders: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        key = candidate.point.kind, candidate.entry_point.name
        if hooks.is_blocked(candidate.identity):
            plugins.append(_excluded(candidate, selection))
        elif holders.setdefault(key, candidate) is candidate:
            plugins.append(_read(hooks, candidate))
        else:
            plugins.append(_duplicate(candidate, holders[key]))
    return plugins


def known_names(plugins: list[Plugin]) -> set[str]:
    """Everything that a selection may call one of `plugins`."""
    names: set[str] = set()
    for record in (plugin.record for plugin in plugins):
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
    reason = f"`{holder.distribution}` registers a {holder.point.kind} of this name, too"
    exclude = f"`GPTRS_DISABLE_PLUGINS={canonical(holder.distribution)}`"
    hint = f"uninstall one of the two, or exclude one by {exclude}"
    return Plugin(_record(candidate, PluginState.DUPLICATE, reason, hint))


def _unreadable(file: Unreadable) -> Plugin:
    record = PluginRecord(
        name=file.distribution,
        kind="distribution",
        distribution=file.distribution,
        version=file.version,
        api=None,
        state=PluginState.BROKEN,
        reason=f"its {ENTRY_POINTS_FILE} cannot be read: {one_line(file.error)}",
        hint=f"reinstall `{file.distribution}`",
        entry_point=ENTRY_POINTS_FILE,
        summary=None,
    )
    return Plugin(record, cause=file.error)


def _read(hooks: pluggy.PluginManager, candidate: Candidate) -> Plugin:
    """Import what the entry point names; whatever goes wrong becomes the state of the plugin."""
    plugin = Plugin(_record(candidate, PluginState.AVAILABLE))
    try:
        description = _describe(candidate)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        plugin.break_by(error)
        return plugin
    plugin.description = description
    plugin.record = replace(plugin.record, api=description.api, summary=description.summary)
    if is_compatible(description.api):
        hooks.register(Described(description), candidate.identity)
    else:
        plugin.record = replace(
            plugin.record,
            state=PluginState.INCOMPATIBLE,
            reason=f"written for plugin API {description.api}, this gptrs has {API_VERSION}",
            hint=f"install versions of `{candidate.distribution}` and `gptrs-core` that fit",
        )
    return plugin


def _describe(candidate: Candidate) -> PluginDescription:
    target: object = candidate.entry_point.load()
    describe = getattr(target, Hooks.gptrs_describe.__name__, None)
    if getattr(describe, "gptrs_impl", None) is not None:  # the mark that `@hookimpl` leaves
        target = cast("Described", target).gptrs_describe()
    wanted, entry = candidate.point.description, candidate.entry_point
    if not isinstance(target, wanted):
        found = type(target).__name__
        raise PluginError(f"`{entry.value}` must be a `{wanted.__name__}`, it is a `{found}`")
    if target.name != entry.name:
        raise PluginError(
            f"the entry point `{entry.name}` names a plugin that calls itself `{target.name}`"
        )
    return target


def _repair_hint(record: PluginRecord, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    own = record.entry_point.partition(":")[0].partition(".")[0]
    exclude = f"or exclude it by `GPTRS_DISABLE_PLUGINS={record.name}`"
    if missing is not None and missing.partition(".")[0] != own:
        return f"install the module `{missing}`, {exclude}"
    return f"update or reinstall `{record.distribution}`, {exclude}"
