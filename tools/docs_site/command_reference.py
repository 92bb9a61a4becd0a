"""The page about the command line, made from the commands themselves."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple

from typer.core import TyperGroup

from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.command_group import HELP_ORDER, built_in, command_of
from gptrs_cli.main import app

_ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = re.compile(r" *\[env: (?P<name>\w+)\]")
_HEAD = """\
# The command line

This page is generated from the code of the commands; `gptrs COMMAND --help` prints the same.
Options that several commands share are listed once, [in the last table](#shared-options). Text goes
to standard output, everything else to standard error. An option overrides its
[variable](../environment.md).

"""
_SHARED_FROM = 4
"""An option of so many commands is a shared one."""
_TABLE = "| option | what it does | variable |\n|---|---|---|\n"


@dataclass(frozen=True)
class _Leaf:
    """A command that runs something: its words, and its parameters but `--help`."""

    words: tuple[str, ...]
    command: Any
    package: str = ""
    """The distribution that brings the command, unless that is gptrs-cli."""

    @property
    def context(self) -> Any:
        """The context in which parameters say what they are."""
        return self.command.context_class(self.command, info_name=self.words[-1])

    def parameters(self, kind: str) -> list[_Parameter]:
        """Return the parameters of a kind, `argument` or `option`."""
        context = self.context
        found = [p for p in self.command.get_params(context) if p.param_type_name == kind]
        return [_parameter(p, context) for p in found if p.name != "help" and not p.hidden]


class _Parameter(NamedTuple):
    """How a parameter is written, what it does, and the variable that sets it, if any."""

    usage: str
    text: str
    variable: str

    @property
    def name(self) -> str:
        """The option without its value."""
        return self.usage.split()[0].rstrip(",")

    @property
    def row(self) -> str:
        """The parameter as a row of a table."""
        cells = (f"`{self.usage}`", self.text, self.variable and f"`{self.variable}`")
        escaped = (cell.replace("|", r"\|") for cell in cells)
        return f"| {' | '.join(escaped)} |"


def _parameter(parameter: Any, context: Any) -> _Parameter:
    usage, text = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        usage = " ".join(parameter.get_usage_pieces(context))
    variable = _VARIABLE.search(text)
    text = " ".join(_VARIABLE.sub("", text).split())
    return _Parameter(usage, text, variable["name"] if variable else "")


def page() -> str:
    """Return the page as Markdown."""
    packaged, absent = _of_packages()
    leaves = [*_leaves(), *packaged]
    shared = _shared(leaves)
    sections = [*(_section(leaf, shared) for leaf in leaves), *absent]
    table = _TABLE + "\n".join(parameter.row for parameter in shared)
    return "\n".join([_HEAD, *sections, f"## Shared options\n\n{table}\n\n{app.info.epilog}\n"])


def _leaves() -> Iterator[_Leaf]:
    """Yield every built-in command in the order of the help."""
    names = built_in()
    known = [name for name in HELP_ORDER if name in names]
    for name in (*known, *sorted(names.keys() - {*known})):
        yield from _below((name,), command_of(manager().factory(CommandPlugin, name), name))


def _of_packages() -> tuple[list[_Leaf], list[str]]:
    """Return the commands of the other packages of the repository, installed or not.

    Those that cannot be imported, since a library is missing, come as sections without options.
    """
    leaves, sections = list[_Leaf](), list[str]()
    for file in sorted(_ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        commands = project.get("entry-points", {}).get("gptrs.commands", {})
        if project["name"] == "gptrs-cli" or not commands:
            continue
        if (sources := str(file.parent / "src")) not in sys.path:
            sys.path.append(sources)
        for name, place in sorted(commands.items()):
            plugin = _imported(place)
            try:
                factory = _imported(plugin.factory)
            except ModuleNotFoundError:
                sections.append(_section_without_options(plugin, project["name"]))
                continue
            for leaf in _below((name,), command_of(factory, name)):
                leaves.append(replace(leaf, package=project["name"]))
    return leaves, sections


def _imported(place: str) -> Any:
    """Return what an entry point, `module:name`, names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _below(words: tuple[str, ...], command: Any) -> Iterator[_Leaf]:
    """Yield the command, or the commands of a group, each loaded if it is a lazy one."""
    context = command.make_context(words[-1], [], resilient_parsing=True)
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            yield from _below((*words, name), command.get_command(context, name))
    else:
        yield _Leaf(words, context.command)


def _shared(leaves: list[_Leaf]) -> list[_Parameter]:
    """Return the options that several commands have with the same words."""
    counts = Counter(option for leaf in leaves for option in leaf.parameters("option"))
    return [option for option, count in counts.items() if count >= _SHARED_FROM]


def _section(leaf: _Leaf, shared: list[_Parameter]) -> str:
    arguments, options = leaf.parameters("argument"), leaf.parameters("option")
    words = " ".join(("gptrs", *leaf.words))
    usage = " ".join([words, "[OPTIONS]", *(argument.usage for argument in arguments)])
    lines = [f"## {words}\n", f"```text\n{usage}\n```\n", cleandoc(leaf.command.help or "") + "\n"]
    if leaf.package:
        lines.append(f"This command comes with the package `{leaf.package}`.\n")
    own = [*arguments, *(option for option in options if option not in shared)]
    if own:
        lines.append(_TABLE + "\n".join(parameter.row for parameter in own) + "\n")
    also = ", ".join(f"`{option.name}`" for option in options if option in shared)
    if also:
        lines.append(f"[Shared options](#shared-options): {also}.\n")
    return "\n".join(lines)


def _section_without_options(plugin: CommandPlugin, package: str) -> str:
    return (
        f"## gptrs {plugin.name}\n\n{plugin.summary}\n\nThis command comes with the package"
        f" `{package}`, without which this page was built; `gptrs {plugin.name} --help` lists"
        " its options.\n"
    )
