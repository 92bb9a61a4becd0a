"""`gptrs list`: lists plugins, kinds of models, functionals, ops and patterns.

Each list is imported when it is asked for, so that the list of plugins is quick.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.entry_points import load_reference
from gptrs_cli.command_group import LazyCommand, command_of
from gptrs_cli.plain_commands import Application, PlainGroup


def _list(name: str, summary: str, module: str) -> CommandPlugin:
    factory = f"gptrs_cli.commands.list.{module}:{name}"
    return CommandPlugin(name=name, summary=summary, factory=factory, api="0.1")


LISTS = (
    _list("backends", "List the backends.", "plugins"),
    _list("models", "List the kinds of models, and the models of packages.", "plugins"),
    _list("functionals", "List the functionals that models call.", "functionals"),
    _list("ops", "List the ops that a backend claims, by element type.", "functionals"),
    _list(
        "patterns", "List the patterns of functions that are matched in programs.", "functionals"
    ),
    _list("plugins", "List every plugin.", "plugins"),
)


class ListGroup(PlainGroup):
    """The lists; each is imported on its own."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return [each.name for each in LISTS]

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        described = next((each for each in LISTS if each.name == cmd_name), None)
        if described is None:
            self.commands = dict.fromkeys(self.list_commands(ctx))  # for typer's suggestions
            return None
        return LazyCommand(described.name, described.summary, lambda: _load(described))


app = Application(
    "List backends, models, functionals, ops, patterns or plugins.",
    ListGroup,
    add_completion=False,
)


@app.callback()
def _lists() -> None:  # pyright: ignore[reportUnusedFunction]
    """Return the group of an application without commands of its own."""


def _load(described: CommandPlugin) -> Any:
    factory: Any = load_reference(described.factory)
    return command_of(factory, described.name)
