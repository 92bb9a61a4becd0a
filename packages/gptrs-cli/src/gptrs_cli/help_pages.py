"""The help of a command: its options in groups, and a pointer to the shared ones."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

_ALL = "gptrs_cli.help.all"
"""Key in the context: also show the further options."""
_LONGEST_SUMMARY = 200
FURTHER = "further: "
"""Prefix of panels of options that only `--help-all` shows."""
SHARED = "shared"
"""The panel of options that `gptrs --help` explains."""


def help_all(context: typer.Context, value: bool) -> None:
    """Print the help with the further options, and exit; the callback of `--help-all`."""
    if value:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


def write_options(command: Any, context: Any, formatter: Any) -> None:
    """Write the options of a command in groups; commands of a group come first."""
    if isinstance(command, TyperGroup):
        for title, names in _groups_of(command, context).items():
            with formatter.section(title):
                formatter.write_dl([(name, _summary(command, context, name)) for name in names])
    arguments, groups = _grouped(command, context)
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl(arguments)
    shared = groups.pop(SHARED, [])
    further = {name: groups.pop(name) for name in list(groups) if name.startswith(FURTHER)}
    for title, records in groups.items():
        with formatter.section(title):
            formatter.write_dl(records)
    show_all = context.meta.get(_ALL, False)
    for title, records in further.items():
        if show_all:
            with formatter.section(title.removeprefix(FURTHER)):
                formatter.write_dl(records)
    if further and not show_all:
        named = _named([record for records in further.values() for record in records])
        _write_note(formatter, "Further options, explained by --help-all", named)
    if shared:
        _write_note(formatter, "Shared options, explained by `gptrs --help`", _named(shared))


def write_examples(context: Any, formatter: Any) -> None:
    """Write the examples of a command below its options; each is a line to copy.

    They are data beside the code: by the words of each command, two whole lines.
    """
    examples = examples_of(context)
    if examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in examples))


def examples_of(context: Any) -> list[str]:
    """Return the examples of a command; none for one of a stranger."""
    table = json.loads((Path(__file__).parent / "examples.json").read_bytes())
    return table.get(context.command_path.removeprefix("gptrs "), [])


def _groups_of(command: Any, context: Any) -> dict[str, list[str]]:
    """Return the commands of a group by section."""
    grouped: Callable[[], dict[str, list[str]]] | None = getattr(command, "grouped", None)
    return grouped() if grouped else {"Commands": command.list_commands(context)}


def _summary(group: Any, context: Any, name: str) -> str:
    return group.get_command(context, name).get_short_help_str(_LONGEST_SUMMARY)


Records = list[tuple[str, str]]


def _grouped(command: Any, context: Any) -> tuple[Records, dict[str, Records]]:
    """Return the arguments, and the options by their panel; `Options` comes last."""
    arguments: Records = []
    groups: dict[str, Records] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(panel, []).append(record)
    if "Options" in groups:
        groups["Options"] = groups.pop("Options")
    return arguments, groups


def _named(records: Records) -> str:
    return " ".join(record[0].split()[0].rstrip(",").partition("/")[0] for record in records)


def _write_note(formatter: Any, title: str, text: str) -> None:
    """Write a paragraph below a title; names of options are not broken at hyphens."""
    with formatter.section(title):
        indent = " " * formatter.current_indent
        lines = textwrap.wrap(text, formatter.width - len(indent), break_on_hyphens=False)
        formatter.write("".join(f"{indent}{line}\n" for line in lines))
