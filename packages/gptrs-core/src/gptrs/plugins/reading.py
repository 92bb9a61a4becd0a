"""Read the description that an entry point names, which imports a module of a stranger.

It happens when a kind of plugins is first asked for, so that a command imports what it needs.
"""

from __future__ import annotations

from dataclasses import replace

import pluggy

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import API_VERSION, PluginDescription, is_compatible
from gptrs.plugins.discovery import Candidate, Plugin
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


def _describe(candidate: Candidate) -> PluginDescription:
    """Import what the entry point names: a description, or what computes one in a hook."""
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
