"""The commands of `gptrs`: built-in ones and those of plugins, each imported when it is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from gptrs.errors import GptrsError, PluginError
from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import PluginManager, manager
from gptrs.plugins.selection import Selection

HELP_ORDER = (
    *("generate", "forward", "trace", "embed", "run"),
    *("list", "inspect", "convert", "validate"),
    *("bench", "cache", "doctor", "conformance"),
)
"""The built-in commands as the help lists them: what runs models first."""


class CommandGroup(TyperGroup):
    """The root command. Built-in commands come first; a plugin cannot replace one.

    Both kinds are found by their entry points. A broken command of a plugin is left out of the
    help; called by its name, it says what is wrong with it.
    """

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        own = _described(built_in())
        ordered = [name for name in HELP_ORDER if name in own]
        return [*ordered, *(name for name in _described(manager()) if name not in own)]

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for plugins in (built_in(), manager()):
            described = _described(plugins).get(cmd_name)
            if described is not None:
                return LazyCommand(described, functools.partial(_load, plugins, cmd_name))
        if any(record.name == cmd_name for record in manager().records(CommandPlugin)):
            manager().find(CommandPlugin, cmd_name)  # raises the reason why it is not usable
        self.commands = dict.fromkeys(self.list_commands(ctx))  # typer suggests a name of these
        return None


class LazyCommand(TyperCommand):
    """A command known by its description; `load` imports it to be run or asked for its help."""

    def __init__(self, description: CommandPlugin, load: Callable[[], Any]) -> None:
        super().__init__(description.name, help=description.summary)
        self._load = load

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self._load().make_context(info_name, args, parent=parent, **extra)


@functools.cache
def built_in() -> PluginManager:
    """Return the commands of gptrs-cli, which no selection of plugins touches.

    PluginError when its entry points cannot be read.
    """
    plugins = PluginManager(Selection(allowed=frozenset()), quiet=True)
    if not plugins.descriptions(CommandPlugin):
        reason = next((r.reason for r in plugins.records() if r.distribution == "gptrs-cli"), None)
        raise PluginError(
            f"the entry points of `gptrs-cli` cannot be read: {reason or 'there are none'}",
            hint="reinstall it: `pip install --force-reinstall gptrs-cli`",
        )
    return plugins


def command_of(factory: Callable[..., object], name: str) -> Any:
    """Return the command that a typer application, or a function, makes."""
    if not isinstance(factory, typer.Typer):
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(name)(factory)
        factory = app
    return typer.main.get_command(factory)


def _load(plugins: PluginManager, name: str) -> Any:
    factory = plugins.factory(CommandPlugin, name)
    try:
        return command_of(factory, name)
    except Exception as error:  # e.g. an application without a single command
        raise plugins.broken(CommandPlugin, name, error) from error


def _described(plugins: PluginManager) -> dict[str, CommandPlugin]:
    """Return the usable commands; none while a strict selection refuses to list plugins."""
    try:
        return {plugin.name: plugin for plugin in plugins.descriptions(CommandPlugin)}
    except GptrsError:
        return {}
