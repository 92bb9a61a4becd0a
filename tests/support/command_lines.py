"""Command lines as they stand in texts: the parser takes them, and nothing runs."""

from __future__ import annotations

import functools
import shlex

import typer

from gptrs_cli.command_group import command_of
from gptrs_cli.main import app
from gptrs_cli.options.settings import Settings

_ENDS = ("|", ">", "<", "&", "&&")


def require_taken(line: str) -> None:
    """Raise what the parser raises for a line that begins with `gptrs`; a pipe ends it."""
    told = shlex.split(line, comments=True)
    end = min((told.index(mark) for mark in _ENDS if mark in told), default=len(told))
    command, context, rest = _root(), None, told[:end]
    try:
        while rest and hasattr(command, "get_command"):
            context = command.make_context(rest[0], rest[1:], parent=context, obj=Settings())
            rest = [*context._protected_args, *context.args]
            command = command.get_command(context, rest[0]) if rest else None
        if command is not None:
            command.make_context(rest[0], rest[1:], parent=context)
    except typer.Exit:  # a help was printed
        pass


_root = functools.cache(functools.partial(command_of, app, "gptrs"))
