"""Adds the commands of plugins to those of gptrs; each is imported when it is used."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import manager


class CommandGroup(TyperGroup):
    """The root command: built-in names first, then those that plugins describe.

    A plugin cannot replace a built-in command. One that is broken is left out of the help; asked
    for by its name, it says what is wrong with it.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, as the help shows them."""
        built_in = super().list_commands(ctx)
        return [*built_in, *(name for name in _descriptions() if name not in built_in)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called `cmd_name`, None if there is none."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        records = manager().records(CommandPlugin)
        if all(record.name != cmd_name for record in records):
            return None
        described = _descriptions().get(cmd_name)
        return PluginCommand(cmd_name, help=described.summary if described else None)


class PluginCommand(TyperCommand):
    """A command of a plugin: known by its description until it is run or asked for its help."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Import the command and let it parse `args`; PluginError when it cannot be imported."""
        command = _load(info_name or "")
        return command.make_context(info_name, args, parent=parent, **extra)


def _load(name: str) -> Any:
    factory = manager().factory(CommandPlugin, name)
    try:
        if not isinstance(factory, typer.Typer):
            app = typer.Typer(rich_markup_mode=None, add_completion=False)
            app.command(name)(factory)
            factory = app
        return typer.main.get_command(factory)
    except Exception as error:  # e.g. an application without a single command
        raise manager().broken(CommandPlugin, name, error) from error


def _descriptions() -> dict[str, CommandPlugin]:
    """The usable commands of plugins; none while a strict selection refuses to list plugins."""
    try:
        return {plugin.name: plugin for plugin in manager().descriptions(CommandPlugin)}
    except GptrsError:
        return {}
