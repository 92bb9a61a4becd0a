"""Read the description that an entry point names, which imports a module of a stranger.

It happens when a kind of plugins is first asked for, so that a command imports what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import islice
from typing import cast

import pluggy

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import API_VERSION, PluginDescription, is_compatible
from gptrs.plugins.discovery import Candidate, Plugin
from gptrs.plugins.entry_points import MOST_ENTRIES
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.hookspecs import PROJECT, Hooks


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
