"""The commands of `gptrs`, built in or from plugins; each is imported when it is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand
from typing_extensions import override

from gptrs.errors import GptrsError, PluginError, UsageError
from gptrs.install_hints import install_own
from gptrs.lazy_module import lazy_module
from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import PluginManager, manager
from gptrs.plugins.refusals import failure, refusal
from gptrs.plugins.selection import is_own
from gptrs_cli.options.groups import with_options
from gptrs_cli.plain_commands import Application, PlainGroup
from gptrs_cli.terminal.failures import is_usual_end

if TYPE_CHECKING:
    from gptrs_cli import summaries
else:  # imported late: only commands of plugins need it, and msgspec slows the start
    summaries = lazy_module("gptrs_cli.summaries")

HELP_GROUPS = {
    "Run models": (
        *("generate", "chat", "forward", "trace", "steer"),
        *("embed", "classify", "rank", "match", "tag", "fill", "transcribe", "tokenize"),
    ),
    "Models and programs": (
        *("models", "list", "inspect", "convert", "quantize", "compile", "run"),
    ),
    "Measure and check": ("bench", "perplexity", "validate", "cache", "doctor", "docs"),
    "Look for faults": ("bisect", "replay"),
    "Write plugins": ("conformance", "plugins"),
}
_OF_PACKAGES = {
    "batch": "gptrs-ray",
    "finetune": "gptrs-train",
    "new": "gptrs-new",
    "serve": "gptrs-serve",
    "train": "gptrs-train",
}
"""Commands that come with other distributions of gptrs."""
_SHORT = {
    "pull": ("models", "pull"),
    "rm": ("models", "remove"),
    "ls": ("models", "list"),
}
"""Commands of groups by the names that ollama gives them."""
_ELSEWHERE = {
    "ps": "each command loads its own model; `gptrs models list` shows those on this disk, and"
    " `/api/ps` of a running `gptrs serve` those that it holds",
    "show": "`gptrs inspect MODEL` shows a model",
    "create": "`gptrs quantize` and `gptrs convert` write models",
    "cp": "a model is a folder or a file: copy it",
    "stop": "nothing runs after a command; end `gptrs serve` by Ctrl+C",
    "version": "`gptrs --version` prints it, `gptrs doctor` those of all parts",
    "help": "`gptrs --help` explains the commands, `gptrs COMMAND --help` one of them",
}
"""Commands of other tools: what to do instead."""
HELP_ORDER = tuple(name for names in HELP_GROUPS.values() for name in names)
"""The built-in commands in the order of the help: those that run models come first."""


class CommandGroup(PlainGroup):
    """The root command. Built-in commands come first; a plugin cannot replace one.

    Both are found by entry points. The help imports no command of a plugin: a broken command
    reports its error when it is called.
    """

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in commands_by_group().values() for name in names]

    def grouped(self) -> dict[str, list[str]]:
        """Return the names of commands by their section in the help."""
        return commands_by_group()

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # Built-in ones first, so that a plugin cannot take the name of one.
        for find_summaries in (built_in, _foreign):
            known = find_summaries()
            if cmd_name in known:
                load = functools.partial(_load, cmd_name)
                return LazyCommand(cmd_name, known[cmd_name], load)
        name = cmd_name.rpartition(":")[2]
        if any(record.name == name for record in manager().installed(CommandPlugin)):
            # DISTRIBUTION:NAME; for others this raises the reason why the command cannot be used.
            summary = manager().find(CommandPlugin, cmd_name).summary
            return LazyCommand(cmd_name, summary, functools.partial(_load, cmd_name))
        for record in manager().misplaced():
            if record.name == name:
                raise refusal(record)
        # After the plugins: where the package is installed, its command was found above.
        if cmd_name in _OF_PACKAGES:
            package = _OF_PACKAGES[cmd_name]
            raise UsageError(
                f"the command `{cmd_name}` comes with `{package}`, which is not installed",
                hint=install_own(package),
            )
        if cmd_name in _SHORT:
            group, name = _SHORT[cmd_name]
            return _load(group).get_command(ctx, name)
        if cmd_name in _ELSEWHERE:
            raise UsageError(f"there is no command `{cmd_name}`", hint=_ELSEWHERE[cmd_name])
        self.commands = dict.fromkeys(self.list_commands(ctx))  # for typer's suggestions
        return None


def commands_by_group() -> dict[str, list[str]]:
    """Return the names of commands by their section in the help; plugins come last."""
    own, foreign = built_in(), _foreign()
    groups = {
        title: [name for name in names if name in own] for title, names in HELP_GROUPS.items()
    }
    groups["Commands of plugins"] = [name for name in foreign if name not in own]
    return {title: names for title, names in groups.items() if names}


class LazyCommand(TyperCommand):
    """A command that is known by its summary; `load` imports it to run it or to print its help."""

    def __init__(self, name: str, summary: str, load: Callable[[], Any]) -> None:
        super().__init__(name, help=summary)
        self._load = load

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self._load().make_context(info_name, args, parent=parent, **extra)


def built_in() -> dict[str, str]:
    """Return the summaries of the commands of gptrs-cli, which no selection of plugins can hide.

    PluginError when its entry points cannot be read.
    """
    records = [plugin.record for plugin in manager().built_in()]
    if not records:
        damaged = (r.reason for r in manager().installed() if r.distribution == "gptrs-cli")
        raise PluginError(
            f"the entry points of `gptrs-cli` cannot be read: {next(damaged, 'there are none')}",
            hint=f"reinstall it: {install_own('gptrs-cli')}",
        )
    return {record.name: record.summary or "" for record in records}


def command_of(factory: Callable[..., object], name: str) -> Any:
    """Return the click command of a typer application or of a function."""
    if not isinstance(factory, typer.Typer):
        app = Application(add_completion=False)
        app.command(name)(with_options(factory))
        factory = app
    return typer.main.get_command(factory)


def _load(name: str) -> Any:
    plugins = manager()
    factory = plugins.factory(CommandPlugin, name)
    try:
        command = command_of(factory, name)
    except Exception as error:  # e.g. an application without commands
        raise plugins.broken(CommandPlugin, name, error) from error
    record = plugins.record(CommandPlugin, name)
    if not is_own(record.distribution):
        summaries.remember([record])
        command.invoke = _guarded(command.invoke, plugins, name)
    return command


def _guarded(
    invoke: Callable[..., object], plugins: PluginManager, name: str
) -> Callable[..., object]:
    """Wrap the command of a plugin: its exceptions become an error that names the plugin.

    SystemExit, too: commands are to set an exit code by `typer.Exit`.
    """

    def run(*arguments: Any) -> object:
        try:
            return invoke(*arguments)
        except (GptrsError, KeyboardInterrupt, MemoryError, BrokenPipeError):
            raise
        except BaseException as error:
            if is_usual_end(error):
                raise
            raise failure(plugins.record(CommandPlugin, name), "its command", error) from error

    return run


def _foreign() -> dict[str, str]:
    """Return summaries of the commands of plugins; none if a strict selection refuses plugins."""
    try:
        commands = manager().known(CommandPlugin)
    except GptrsError:
        return {}
    unread = [
        record for record in commands if not record.summary and not is_own(record.distribution)
    ]
    kept: dict[str, str] = summaries.remembered(unread) if unread else {}
    return {
        record.name: record.summary
        or kept.get(record.name)
        or f"From {record.distribution} {record.version}."
        for record in commands
    }
